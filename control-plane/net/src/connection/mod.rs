//! Accepted connections: who is at the other end, and a way to cut one off.
//!
//! A connection goes from [`port`] (accepting, counting) through the handshake to [`serving`] (HTTP, deadlines). Each
//! is a task of its own from the start, so that none waits for another's handshake. A peer that stops reading leaves
//! its streams where no message can reach them: HTTP/2 asks for no more data, so not even an error can be sent.
//! Cutting the connection is the only way to be rid of it; each request carries a handle that does it. The same handle
//! ends what outlasts the drain time on shutdown.

mod activity;
mod http;
mod io;
mod listener;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use self::listener::Listener;
use crate::limits::{LimitExceeded, Limiter, QuotaPermit};
use crate::tls::ClientNames;

/// What each request knows of the connection it came over.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The connection is encrypted by this server.
    pub tls: bool,
    /// The names in the client's certificate, which was verified; none where it showed none.
    pub certificate: Option<Arc<ClientNames>>,
    cut: CancellationToken,
    goodbye: CancellationToken,
    counted: Arc<Mutex<ConnectionPermits>>,
}

/// How long a request may keep its connection, the taking of its answer included.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimeouts {
    /// Whatever is answered once.
    pub answered_within: Duration,
    /// Health that is watched: nobody is asked who they are.
    pub watched_within: Duration,
    /// The kind of answer of a path.
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

/// For whom a connection is counted.
#[derive(Debug)]
struct ConnectionPermits {
    /// As one of its address that has proven nothing; none once it has, or where nobody is asked to.
    newcomer: Option<QuotaPermit>,
    /// For an identity.
    registered: Option<QuotaPermit>,
}

impl ConnectionInfo {
    /// Ends the connection at once.
    pub fn cut_off(&self) {
        self.cut.cancel();
    }

    /// Counts the connection for an identity, that of its first request; of the first one that proves who asks, if there
    /// is one. Over the limit the connection takes no more requests.
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
