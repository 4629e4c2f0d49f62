//! The connection to etcd: one client for all members, every request bounded in time and tried again.
//!
//! A request is tried until [`PATIENCE`] is over, since a member that is down or an election pass by
//! themselves, and every request made here may be repeated: reads change nothing, and transactions compare what
//! they rest on. A failure says whether any attempt can have reached etcd. Only a failed connection is sure not
//! to have; that is read from the chain of sources, as the status code alone does not tell.

use std::error::Error as _;
use std::future::Future;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, GetResponse, Identity, KvClient, TlsOptions, Txn,
    TxnResponse, WatchClient, WatchOptions, WatchStream,
};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;

use super::{Settings, Tls};
use crate::store::{Error, OpenError};

/// How long a request is tried; less than the 5 s in which every answer is due.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long one attempt may take before another member is asked.
const ATTEMPT: Duration = Duration::from_millis(1900);

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_millis(1500);

/// The pause between attempts grows from the first to the second of these, with full jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// How often a busy connection is probed, and how long the answer may take. etcd ends connections that are
/// probed more often than every 5 s, or at all while idle.
const PROBE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(4));

/// The largest answer taken; pages are far below it.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Why a request came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    reason: String,
    /// Whether an attempt may have reached etcd and been carried out.
    sent: bool,
    /// etcd no longer keeps the revision that was asked for.
    pub(super) compacted: bool,
}

impl Failure {
    /// For a request that has written nothing.
    pub(super) fn unavailable(self) -> Error {
        Error::Unavailable { reason: self.reason }
    }

    /// For a request that would have written.
    pub(super) fn after_write(self) -> Error {
        if self.sent { Error::Uncertain { reason: self.reason } } else { self.unavailable() }
    }
}

/// How to go on after an attempt failed.
struct Verdict {
    again: bool,
    sent: bool,
    compacted: bool,
    /// The client's token or connection is of no use any more.
    renew: bool,
}

/// The way to etcd.
pub(super) struct Link {
    endpoints: Vec<String>,
    options: ConnectOptions,
    client: Mutex<Option<Client>>,
}

impl Link {
    pub(super) fn new(settings: &Settings) -> Result<Self, OpenError> {
        if settings.endpoints.is_empty() {
            return Err(OpenError::Settings { reason: "no endpoint".to_owned() });
        }
        if !settings.prefix.ends_with('/') {
            let reason = format!("the prefix {:?} does not end with a slash", settings.prefix);
            return Err(OpenError::Settings { reason });
        }
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_keep_alive(PROBE.0, PROBE.1)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        match (&settings.user, &settings.password) {
            (Some(user), Some(password)) => options = options.with_user(user, password),
            (None, None) => {}
            _ => {
                let reason = "a user needs a password, and a password a user".to_owned();
                return Err(OpenError::Settings { reason });
            }
        }
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        if let Some(tls) = &settings.tls {
            options = options.with_tls(tls_options(tls)?);
        }
        let endpoints = settings.endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}")).collect();
        Ok(Self { endpoints, options, client: Mutex::new(None) })
    }

    pub(super) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, Failure> {
        self.call(|client| {
            let txn = txn.clone();
            async move { kv(&client).txn(txn).await }
        })
        .await
    }

    pub(super) async fn get(&self, key: &[u8], options: &GetOptions) -> Result<GetResponse, Failure> {
        self.call(|client| {
            let (key, options) = (key.to_vec(), options.clone());
            async move { kv(&client).get(key, Some(options)).await }
        })
        .await
    }

    /// Opens a watch; it is not repeated, the caller must read what it missed before the next try.
    pub(super) async fn watch(&self, key: &[u8], options: WatchOptions) -> Result<WatchStream, Failure> {
        let attempt = async {
            let client = self.client().await?;
            watches(&client).watch(key.to_vec(), Some(options)).await
        };
        match timeout_at(Instant::now() + PATIENCE, attempt).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => {
                if judge(&error).renew {
                    self.forget();
                }
                Err(Failure { reason: describe(&error), sent: false, compacted: false })
            }
            Err(_) => Err(Failure { reason: "no answer in time".to_owned(), sent: false, compacted: false }),
        }
    }

    /// Makes a request until it is answered, refused for good, or patience is over.
    pub(super) async fn call<T, F>(&self, request: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + PATIENCE;
        let mut sent = false;
        let mut pause = PAUSE.0;
        loop {
            let until = deadline.min(Instant::now() + ATTEMPT);
            let attempt = async { request(self.client().await?).await };
            let (reason, verdict) = match timeout_at(until, attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => (describe(&error), judge(&error)),
                Err(_) => {
                    let verdict = Verdict { again: true, sent: true, compacted: false, renew: false };
                    ("no answer in time".to_owned(), verdict)
                }
            };
            sent |= verdict.sent;
            if verdict.renew {
                self.forget();
            }
            let wait = pause.mul_f64(fastrand::f64());
            if !verdict.again || Instant::now() + wait >= deadline {
                return Err(Failure { reason, sent, compacted: verdict.compacted });
            }
            sleep(wait).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    async fn client(&self) -> Result<Client, etcd_client::Error> {
        if let Some(client) = self.slot().clone() {
            return Ok(client);
        }
        let client = Client::connect(&self.endpoints, Some(self.options.clone())).await?;
        Ok(self.slot().get_or_insert(client).clone())
    }

    fn forget(&self) {
        *self.slot() = None;
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES)
}

fn watches(client: &Client) -> WatchClient {
    client.watch_client().max_decoding_message_size(MAX_ANSWER_BYTES)
}

fn judge(error: &etcd_client::Error) -> Verdict {
    let etcd_client::Error::GRpcStatus(status) = error else {
        return Verdict { again: true, sent: true, compacted: false, renew: true };
    };
    let refused = Verdict { again: false, sent: false, compacted: false, renew: false };
    match status.code() {
        Code::OutOfRange => Verdict { compacted: status.message().contains("compacted"), ..refused },
        Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted | Code::Unimplemented => {
            refused
        }
        Code::Unauthenticated | Code::PermissionDenied => Verdict { renew: true, ..refused },
        _ => Verdict { again: true, sent: !never_connected(status), compacted: false, renew: false },
    }
}

/// Whether the request did not leave, for want of a connection.
fn never_connected(status: &tonic::Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The error with its sources, which is where the system's own words are.
fn describe(error: &etcd_client::Error) -> String {
    let mut text = match error {
        etcd_client::Error::GRpcStatus(status) => format!("etcd: {} ({:?})", status.message(), status.code()),
        other => format!("etcd: {other}"),
    };
    let mut source = match error {
        etcd_client::Error::GRpcStatus(status) => status.source(),
        etcd_client::Error::TransportError(error) => error.source(),
        _ => None,
    };
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

fn tls_options(tls: &Tls) -> Result<TlsOptions, OpenError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| OpenError::Credentials { path: path.to_owned(), source })
    };
    let mut options = TlsOptions::new();
    if let Some(ca) = &tls.ca {
        options = options.ca_certificate(Certificate::from_pem(read(ca)?));
    }
    match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => options = options.identity(Identity::from_pem(read(cert)?, read(key)?)),
        (None, None) => {}
        _ => {
            let reason = "a certificate needs its key, and a key its certificate".to_owned();
            return Err(OpenError::Settings { reason });
        }
    }
    if let Some(domain) = &tls.domain {
        options = options.domain_name(domain);
    }
    Ok(options)
}
