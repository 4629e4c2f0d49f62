//! Counters of certificates and handshakes.

use metrics::{Counter, Gauge};

use super::HandshakeFailure;

/// The counters of TLS. Clones share them.
#[derive(Clone)]
pub struct TlsCounters {
    /// When the certificate in use expires, in seconds since 1970; 0 without TLS.
    pub certificate_expires_at: Gauge,
    /// 1 while the certificate files are invalid and the previous ones stay in use.
    pub reload_failing: Gauge,
    /// Failed handshakes by cause, in the order of [`HandshakeFailure::ALL`].
    pub handshake_failures: [Counter; HandshakeFailure::ALL.len()],
}

impl std::fmt::Debug for TlsCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsCounters").finish_non_exhaustive()
    }
}

impl TlsCounters {
    /// Counters that nothing reads.
    #[must_use]
    pub fn noop() -> Self {
        Self {
            certificate_expires_at: Gauge::noop(),
            reload_failing: Gauge::noop(),
            handshake_failures: HandshakeFailure::ALL.map(|_| Counter::noop()),
        }
    }

    /// Counts a failed handshake.
    pub fn handshake_failed(&self, cause: HandshakeFailure) {
        self.handshake_failures[cause as usize].increment(1);
    }
}
