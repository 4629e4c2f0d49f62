//! Accepted connections: identity of the peer, and a handle that cuts a connection.
//!
//! `listener` accepts and counts connections, runs the handshake and passes them to `http`, which
//! enforces deadlines. Each connection is a task from the start, so none waits for another's handshake. A
//! peer that stops reading blocks HTTP/2 flow control, so not even an error can be sent on its streams. Only
//! a cut ends such a connection; each request carries the handle for it. The same handle closes connections
//! after the drain time at shutdown.

mod activity;
mod http;
mod io;
mod listener;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use self::http::{MAX_HEAD_BYTES, STREAM_WINDOW_BYTES};
pub use self::listener::Listener;
use crate::limits::{LimitExceeded, Limiter, QuotaPermit};
use crate::tls::ClientNames;

/// Connection of a request.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The connection is encrypted by this server.
    pub tls: bool,
    /// Names in the verified client certificate; `None` if the client showed none.
    pub certificate: Option<Arc<ClientNames>>,
    cut: CancellationToken,
    goodbye: CancellationToken,
    counted: Arc<Mutex<ConnectionPermits>>,
}

/// Time limits of requests, the transfer of the answer included.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimeouts {
    /// For paths with one answer.
    pub answered_within: Duration,
    /// For health watches, which need no authentication.
    pub watched_within: Duration,
    /// Returns the kind of answer of a path.
    pub kind: fn(&str) -> AnswerKind,
}

/// How long the answer to a path may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// One answer, for [`RequestTimeouts::answered_within`].
    Unary,
    /// A stream without authentication, for [`RequestTimeouts::watched_within`].
    OpenStream,
    /// A stream of an authenticated client: no limit.
    Stream,
}

impl RequestTimeouts {
    /// Returns the limit of a path; `None` if there is none.
    fn with(self, path: &str) -> Option<Duration> {
        match (self.kind)(path) {
            AnswerKind::Unary => Some(self.answered_within),
            AnswerKind::OpenStream => Some(self.watched_within),
            AnswerKind::Stream => None,
        }
    }
}

/// Quotas that count a connection.
#[derive(Debug)]
struct ConnectionPermits {
    /// Quota of addresses without a proven identity; `None` once the identity is known, or if authentication
    /// is off.
    newcomer: Option<QuotaPermit>,
    /// Quota of the identity.
    registered: Option<QuotaPermit>,
}

impl ConnectionInfo {
    /// Ends the connection at once.
    pub fn cut_off(&self) {
        self.cut.cancel();
    }

    /// Counts the connection for the identity of its first request, or of its first authenticated request. A
    /// connection over the limit accepts no more requests.
    pub fn belongs_to(
        &self,
        identity: &str,
        is_proven: bool,
        limiter: &Limiter,
    ) -> Result<(), LimitExceeded> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_settled = counted.newcomer.is_none() || !is_proven;
        if counted.registered.is_some() && is_settled {
            return Ok(());
        }
        counted.registered = Some(limiter.register(identity).inspect_err(|_| self.goodbye.cancel())?);
        if is_proven {
            counted.newcomer = None;
        }
        Ok(())
    }
}
