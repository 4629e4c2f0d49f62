//! Counters of limit hits.

use metrics::Counter;

use super::Limit;

/// Hits of each limit, in the order of [`Limit::ALL`]. Clones share them.
#[derive(Clone)]
pub struct LimitCounters(pub [Counter; Limit::ALL.len()]);

impl std::fmt::Debug for LimitCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LimitCounters").finish_non_exhaustive()
    }
}

impl LimitCounters {
    /// Counters that nothing reads.
    #[must_use]
    pub fn noop() -> Self {
        Self(Limit::ALL.map(|_| Counter::noop()))
    }

    /// Counts a hit.
    pub fn hit(&self, limit: Limit) {
        self.0[limit as usize].increment(1);
    }
}
