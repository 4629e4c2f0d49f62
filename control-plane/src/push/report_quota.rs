//! Limits the reports of one client.
//!
//! A report is counted under the lock of the statistics and sent to every peer, so its cost is shared. A
//! correct client reports once per interval, in about ten parts at most. The limit is far above that.

use std::time::Duration;

use tokio::time::Instant;

/// The burst of reports, also the number per shortest report interval.
const BURST: u32 = 64;
const EACH_INTERVAL: u32 = 16;

/// The reports that one client may still send.
#[derive(Debug)]
pub(crate) struct ReportQuota {
    /// The time in which one more report is allowed.
    each: Duration,
    /// The time when the full burst is allowed again.
    whole_at: Instant,
}

impl ReportQuota {
    /// Starts with the full burst.
    pub(crate) fn new(shortest_interval: Duration) -> Self {
        Self { each: shortest_interval / EACH_INTERVAL, whole_at: Instant::now() }
    }

    /// Counts one report; false if it exceeds the limit.
    pub(crate) fn take(&mut self) -> bool {
        let now = Instant::now();
        let whole_at = self.whole_at.max(now) + self.each;
        let is_within = whole_at <= now + self.each * BURST;
        if is_within {
            self.whole_at = whole_at;
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_report_in_parts_is_taken_and_a_flood_is_not() {
        let mut allowance = ReportQuota::new(Duration::from_secs(1));
        assert_eq!((0..1000).filter(|_| allowance.take()).count(), 64);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..1000).filter(|_| allowance.take()).count(), 16);
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!((0..12).all(|_| allowance.take()), "what an honest client reports");
        }
    }
}
