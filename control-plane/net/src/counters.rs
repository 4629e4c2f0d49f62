//! Counters of listeners, TLS and limits. The server registers them under its metric names.

use metrics::{Counter, Gauge};

use crate::limits::Limit;
use crate::tls::HandshakeFailure;

/// The counters of one server. Clones share them.
#[derive(Clone)]
pub struct Counters {
    /// Open connections.
    pub connections: Gauge,
    /// When the certificate in use expires, in seconds since 1970; 0 without TLS.
    pub tls_certificate_expires_at: Gauge,
    /// 1 while the certificate files are invalid and the previous ones stay in use.
    pub tls_reload_failing: Gauge,
    /// Hits of each limit, in the order of [`Limit::ALL`].
    pub limit_hits: [Counter; Limit::ALL.len()],
    /// Failed handshakes by cause, in the order of [`HandshakeFailure::ALL`].
    pub handshake_failures: [Counter; HandshakeFailure::ALL.len()],
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}

impl Counters {
    /// Counters that nothing reads.
    #[must_use]
    pub fn noop() -> Self {
        Self {
            connections: Gauge::noop(),
            tls_certificate_expires_at: Gauge::noop(),
            tls_reload_failing: Gauge::noop(),
            limit_hits: Limit::ALL.map(|_| Counter::noop()),
            handshake_failures: HandshakeFailure::ALL.map(|_| Counter::noop()),
        }
    }

    /// Counts a hit of a limit.
    pub fn limit_hit(&self, limit: Limit) {
        self.limit_hits[limit as usize].increment(1);
    }

    /// Counts a failed handshake.
    pub fn handshake_failed(&self, cause: HandshakeFailure) {
        self.handshake_failures[cause as usize].increment(1);
    }
}
