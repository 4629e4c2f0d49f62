//! TLS from callers.
//!
//! The files are read for each connection, which takes less than its handshake, and used once their contents
//! have changed. Contents that cannot be used leave the former ones in force: that is logged once, and noted
//! until they can be. Requests over TLS never keep an `x-forwarded-client-cert` that has arrived.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use damper_endpoint::{ServerPem, problem};
use damper_sdk::Faults;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::peer_header;
use crate::config::{InboundTls, Peer};
use crate::counters::Counters;
use crate::lock::lock;

static FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// Limit for a handshake, with the reading of the files.
const WITHIN: Duration = Duration::from_secs(10);
/// Limit for reading the files.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// Pause before files that cannot be used are read again: they may be changing, one by one.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

pub(crate) struct Tls {
    settings: InboundTls,
    counters: Arc<Counters>,
    current: Mutex<Current>,
    /// Its permit is that of the connection that reads the files.
    reads: Arc<Semaphore>,
}

/// The contents in force.
struct Current {
    pem: Arc<ServerPem>,
    config: Arc<ServerConfig>,
    /// Why newer contents are not in force.
    fault: Option<String>,
}

/// What is known of the caller of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The header for the service.
    forwarded: Option<HeaderValue>,
}

impl Tls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// All files that cannot be used.
    pub(crate) fn open(settings: InboundTls, counters: &Arc<Counters>) -> Result<Self, Faults> {
        let (pem, config) = settings.load(None)?.expect("nothing was known");
        let current = Mutex::new(Current { pem: Arc::new(pem), config, fault: None });
        let reads = Arc::new(Semaphore::new(1));
        Ok(Self { settings, counters: Arc::clone(counters), current, reads })
    }

    /// Completes the handshake of a connection.
    ///
    /// # Errors
    /// The reason why there is no encrypted connection.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Caller), String> {
        let accepting = async {
            let acceptor = TlsAcceptor::from(self.config().await);
            acceptor.accept(stream).await.map_err(|error| problem::with_sources(&error))
        };
        let accepted = tokio::time::timeout(WITHIN, accepting).await;
        let stream = accepted.map_err(|_| format!("no handshake within {WITHIN:?}"))??;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let is_forwarded = self.settings.peer == Some(Peer::Forward);
        let forwarded = shown.filter(|_| is_forwarded).map(peer_header::of);
        Ok((stream, Caller { forwarded }))
    }

    async fn config(&self) -> Arc<ServerConfig> {
        // One connection reads: files that hang stop no other connection, and hold one thread.
        if let Ok(turn) = Arc::clone(&self.reads).try_acquire_owned() {
            self.refresh(turn).await;
        }
        Arc::clone(&self.current().config)
    }

    async fn refresh(&self, turn: OwnedSemaphorePermit) {
        let (known, had_fault) = {
            let current = self.current();
            (Arc::clone(&current.pem), current.fault.is_some())
        };
        let settings = self.settings.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            settings.load(Some(&known)).or_else(|faults| {
                if had_fault {
                    return Err(faults);
                }
                std::thread::sleep(AGAIN_AFTER);
                settings.load(Some(&known))
            })
        });
        let loaded = match tokio::time::timeout(READ_WITHIN, loading).await {
            Ok(Ok(loaded)) => loaded.map_err(|faults| faults.to_string()),
            _ => Err(format!("the files were not read within {READ_WITHIN:?}")),
        };
        self.apply(loaded);
    }

    fn apply(&self, loaded: Result<Option<(ServerPem, Arc<ServerConfig>)>, String>) {
        let mut current = self.current();
        let fault = match loaded {
            Ok(None) => None,
            Ok(Some((pem, config))) => {
                (current.pem, current.config) = (Arc::new(pem), config);
                tracing::info!(target: "damper", "changed certificate in force for callers");
                None
            }
            Err(problem) => Some(problem),
        };
        if fault != current.fault {
            if let Some(problem) = &fault {
                tracing::error!(target: "damper", %problem, "changed TLS files rejected; the former stay in force");
            }
            self.counters.tls_fault(fault.clone());
            current.fault = fault;
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        lock(&self.current)
    }
}

impl Caller {
    /// A caller without a certificate.
    pub(super) fn unknown() -> Self {
        Self { forwarded: None }
    }

    /// Replaces what has arrived of a caller's certificate.
    pub(super) fn mark(&self, headers: &mut HeaderMap) {
        headers.remove(&FORWARDED);
        if let Some(value) = &self.forwarded {
            headers.insert(&FORWARDED, value.clone());
        }
    }
}
