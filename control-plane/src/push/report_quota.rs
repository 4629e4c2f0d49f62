//! How often one client may report.
//!
//! What a report costs is borne by all: it is counted under the lock of the statistics and told to every replica. An
//! honest client reports once in the time that it was told, in parts where it has much to say: some ten for a process
//! with all the routes and methods that one can have. So the bound is far above that, and whoever is over it is no client.

use std::time::Duration;

use tokio::time::Instant;

/// The most reports at once, and then in each of the shortest times between two that the server asks for.
const BURST: u32 = 64;
const EACH_INTERVAL: u32 = 16;

/// What one client may still report.
#[derive(Debug)]
pub(crate) struct ReportQuota {
    /// In which one more report is allowed.
    each: Duration,
    /// When all of them are allowed again.
    whole_at: Instant,
}

impl ReportQuota {
    /// All of it, where clients are told to report so often at the most.
    pub(crate) fn new(shortest_interval: Duration) -> Self {
        Self { each: shortest_interval / EACH_INTERVAL, whole_at: Instant::now() }
    }

    /// Takes one report; false where that is too much.
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
