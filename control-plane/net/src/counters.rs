//! The counters of one server's listeners. The server registers them under its metric names.

use metrics::Gauge;

use crate::limits::LimitCounters;
use crate::tls::TlsCounters;

/// The counters of one server. Clones share them.
#[derive(Clone)]
pub struct Counters {
    /// Open connections.
    pub connections: Gauge,
    /// Metrics of TLS.
    pub tls: TlsCounters,
    /// Metrics of limits.
    pub limits: LimitCounters,
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
        Self { connections: Gauge::noop(), tls: TlsCounters::noop(), limits: LimitCounters::noop() }
    }
}
