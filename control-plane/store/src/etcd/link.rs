//! Connection to etcd: one client for all members, with bounded retries of each request.
//!
//! A request is retried for up to [`PATIENCE`], which covers a failed member or an election. All requests are
//! idempotent: reads change nothing, transactions compare their preconditions. A failure records whether any
//! attempt may have reached etcd. Only a failed connection excludes that; it is read from the error's chain
//! of sources, since the status code does not show it.
//!
//! The TLS files are read again when an attempt fails. If they changed, a new connection is made, because an
//! open connection outlives its certificate.

use std::error::Error as _;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, GetResponse, Identity, KvClient, TlsOptions, Txn,
    TxnResponse, WatchClient, WatchOptions, WatchStream,
};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;

use crate::StoreError;
use crate::etcd::config::{EtcdConfig, EtcdTls};
use crate::open_error::OpenError;

/// Retry time of a request; less than the 5 s within which every answer is due.
const PATIENCE: Duration = Duration::from_secs(4);

/// Timeout of an attempt, after which another member is tried.
const ATTEMPT: Duration = Duration::from_millis(1900);

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_millis(1500);

/// Pause between attempts: initial and maximum, with full jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// Keepalive interval of a busy connection, and its timeout. etcd ends connections that are probed more often
/// than every 5 s, or while idle.
const PROBE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(4));

/// Largest accepted answer; pages are far below it.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Failure of a request.
#[derive(Debug)]
pub(crate) struct EtcdFailure {
    reason: String,
    /// True if an attempt may have reached etcd and taken effect.
    sent: bool,
    /// etcd no longer keeps the requested revision.
    pub(crate) compacted: bool,
    /// etcd has no room. It may have carried the request out: the write that exceeds the quota gets the same
    /// answer.
    pub(crate) full: bool,
}

impl EtcdFailure {
    /// For a request that has written nothing.
    pub(crate) fn unavailable(self) -> StoreError {
        StoreError::Unavailable { reason: self.reason }
    }

    /// For a request that would have written.
    pub(crate) fn after_write(self) -> StoreError {
        if self.sent { StoreError::Uncertain { reason: self.reason } } else { self.unavailable() }
    }
}

/// Handling of a failed attempt.
#[derive(Default)]
struct RetryAdvice {
    again: bool,
    sent: bool,
    compacted: bool,
    full: bool,
    /// The client's token or connection is no longer usable.
    renew: bool,
}

/// Connection to etcd.
pub(crate) struct EtcdConnection {
    endpoints: Vec<String>,
    /// Without TLS.
    options: ConnectOptions,
    tls: Option<EtcdTls>,
    material: Mutex<Material>,
    client: Mutex<Option<Client>>,
}

/// Contents of the TLS files.
#[derive(Clone, Default, PartialEq, Eq)]
struct Material {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdConnection {
    pub(crate) fn new(settings: &EtcdConfig) -> Result<Self, OpenError> {
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
        let tls = settings.tls.clone();
        let material = Mutex::new(tls.as_ref().map(Material::read).transpose()?.unwrap_or_default());
        let endpoints = settings.endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}")).collect();
        Ok(Self { endpoints, options, tls, material, client: Mutex::new(None) })
    }

    pub(crate) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, EtcdFailure> {
        self.call(|client| {
            let txn = txn.clone();
            async move { kv(&client).txn(txn).await }
        })
        .await
    }

    pub(crate) async fn get(&self, key: &[u8], options: &GetOptions) -> Result<GetResponse, EtcdFailure> {
        self.call(|client| {
            let (key, options) = (key.to_vec(), options.clone());
            async move { kv(&client).get(key, Some(options)).await }
        })
        .await
    }

    /// Opens a watch without a retry; the caller must read missed changes before the next try.
    pub(crate) async fn watch(&self, key: &[u8], options: WatchOptions) -> Result<WatchStream, EtcdFailure> {
        let attempt = async {
            let client = self.client().await?;
            watches(&client).watch(key.to_vec(), Some(options)).await
        };
        match timeout_at(Instant::now() + PATIENCE, attempt).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => {
                self.forget_if(&retry_advice(&error));
                Err(EtcdFailure { reason: describe(&error), sent: false, compacted: false, full: false })
            }
            Err(_) => {
                let reason = "no answer in time".to_owned();
                Err(EtcdFailure { reason, sent: false, compacted: false, full: false })
            }
        }
    }

    /// Retries a request until it is answered, finally refused, or out of time.
    pub(crate) async fn call<T, F>(&self, request: impl Fn(Client) -> F) -> Result<T, EtcdFailure>
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
                Ok(Err(error)) => (describe(&error), retry_advice(&error)),
                Err(_) => {
                    let verdict = RetryAdvice { again: true, sent: true, ..RetryAdvice::default() };
                    ("no answer in time".to_owned(), verdict)
                }
            };
            sent |= verdict.sent;
            self.forget_if(&verdict);
            let wait = pause.mul_f64(fastrand::f64());
            if !verdict.again || Instant::now() + wait >= deadline {
                return Err(EtcdFailure { reason, sent, compacted: verdict.compacted, full: verdict.full });
            }
            sleep(wait).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    async fn client(&self) -> Result<Client, etcd_client::Error> {
        if let Some(client) = self.slot().clone() {
            return Ok(client);
        }
        let mut options = self.options.clone();
        if let Some(tls) = &self.tls {
            options = options.with_tls(self.material().options(tls));
        }
        let client = Client::connect(&self.endpoints, Some(options)).await?;
        Ok(self.slot().get_or_insert(client).clone())
    }

    /// Makes the next attempt open a new connection if this one is unusable.
    fn forget_if(&self, verdict: &RetryAdvice) {
        if verdict.renew || (verdict.again && self.has_new_files()) {
            *self.slot() = None;
        }
    }

    /// Reads the TLS files again; true if they have changed.
    fn has_new_files(&self) -> bool {
        let Some(tls) = &self.tls else { return false };
        match Material::read(tls) {
            Ok(new) => {
                let mut material = self.material();
                let has_changed = *material != new;
                *material = new;
                has_changed
            }
            Err(error) => {
                tracing::warn!(%error, "reading the etcd TLS files again failed");
                false
            }
        }
    }

    fn material(&self) -> std::sync::MutexGuard<'_, Material> {
        self.material.lock().unwrap_or_else(PoisonError::into_inner)
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

/// etcd's message for a token from before a change of users or roles. Its client then requests another.
const OLD_TOKEN: &str = "revision of auth store is old";

/// etcd's message for an exceeded quota; the request may have been carried out.
const FULL: &str = "database space exceeded";

fn retry_advice(error: &etcd_client::Error) -> RetryAdvice {
    let etcd_client::Error::GRpcStatus(status) = error else {
        return RetryAdvice { again: true, sent: true, renew: true, ..RetryAdvice::default() };
    };
    let refused = RetryAdvice::default();
    match status.code() {
        Code::OutOfRange => RetryAdvice { compacted: status.message().contains("compacted"), ..refused },
        Code::InvalidArgument if status.message().contains(OLD_TOKEN) => {
            RetryAdvice { again: true, renew: true, ..refused }
        }
        Code::ResourceExhausted if status.message().contains(FULL) => {
            RetryAdvice { sent: true, full: true, ..refused }
        }
        Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted | Code::Unimplemented => {
            refused
        }
        Code::Unauthenticated | Code::PermissionDenied => RetryAdvice { renew: true, ..refused },
        _ => RetryAdvice { again: true, sent: !never_connected(status), ..refused },
    }
}

/// Returns true if the request was not sent for lack of a connection.
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

/// Formats the error with its sources, which hold the operating system's message.
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

impl Material {
    fn read(tls: &EtcdTls) -> Result<Self, OpenError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| OpenError::Credentials { path: path.clone(), source })
        };
        let identity = match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            (None, None) => None,
            _ => {
                let reason = "a certificate needs its key, and a key its certificate".to_owned();
                return Err(OpenError::Settings { reason });
            }
        };
        Ok(Self { ca: tls.ca.as_ref().map(read).transpose()?, identity })
    }

    fn options(&self, tls: &EtcdTls) -> TlsOptions {
        let mut options = TlsOptions::new();
        if let Some(ca) = &self.ca {
            options = options.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((cert, key)) = &self.identity {
            options = options.identity(Identity::from_pem(cert, key));
        }
        if let Some(domain) = &tls.domain {
            options = options.domain_name(domain);
        }
        options
    }
}
