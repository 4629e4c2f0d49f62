//! The rate of a queue: the next delivery no sooner than the last one plus 1/rate.
//!
//! Deliveries leave in batches, so up to [`AT_ONCE`] of them may leave together: a leaky bucket with a depth
//! in time (GCRA). Over any second at most rate x 1.05 + 1 deliveries leave.

use std::time::Duration;

use crate::fault::Ratio;
use crate::time::Time;

/// Time whose deliveries may leave at once.
const AT_ONCE: Duration = Duration::from_millis(50);

/// State of a queue's rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// When the next delivery is allowed.
    next: Time,
}

impl Rate {
    /// Returns the number of deliveries that may leave now; without a limit all.
    pub(super) fn room(self, limit: Option<Ratio>, now: Time) -> u32 {
        let Some(interval) = limit.map(interval) else { return u32::MAX };
        let from = self.from(now);
        if from > now {
            return 0;
        }
        let saved = now.since(from).as_micros() / interval.as_micros().max(1);
        u32::try_from(saved).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Counts deliveries.
    pub(super) fn take(&mut self, limit: Option<Ratio>, count: u32, now: Time) {
        if let Some(limit) = limit {
            self.next = self.from(now) + interval(limit).saturating_mul(count);
        }
    }

    /// Takes back a delivery that did not begin.
    pub(super) fn give_back(&mut self, limit: Option<Ratio>) {
        if let Some(limit) = limit {
            let next = Duration::from_micros(self.next.as_micros()).saturating_sub(interval(limit));
            self.next = Time::after_origin(next);
        }
    }

    /// Returns when the next delivery is allowed.
    pub(super) fn next(self) -> Time {
        self.next
    }

    pub(super) fn from_next(next: Time) -> Self {
        Self { next }
    }

    /// Returns the state with the next delivery no further ahead than one interval: else the clock was set
    /// back, or the rate was raised.
    pub(super) fn bounded(self, limit: Option<Ratio>, now: Time) -> Self {
        limit.map_or(self, |limit| Self { next: self.next.min(now + interval(limit)) })
    }

    /// Returns the time until the next delivery.
    pub(super) fn wait(self, now: Time) -> Duration {
        self.next.since(now)
    }

    fn from(self, now: Time) -> Time {
        let since = Duration::from_micros(now.as_micros()).saturating_sub(AT_ONCE);
        self.next.max(Time::after_origin(since))
    }
}

/// Returns the time between two deliveries.
fn interval(rate: Ratio) -> Duration {
    const US_BY_BP: u64 = 1_000_000 * 10_000;
    Duration::from_micros(US_BY_BP / u64::from(rate.bp()).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_per_second_do_not_exceed_the_rate() {
        for (bp, most) in [(1_000, 2), (10_000, 2), (100_000, 11), (100_000_000, 10_501)] {
            let (mut rate, limit) = (Rate::default(), Some(Ratio::from_bp(bp)));
            let count = |rate: &mut Rate, from_ms: u64| {
                let mut count = 0;
                for ms in from_ms..from_ms + 1_000 {
                    let now = Time::from_micros(ms * 1_000);
                    let room = rate.room(limit, now);
                    rate.take(limit, room, now);
                    count += room;
                }
                count
            };
            let seconds = [count(&mut rate, 60_000), count(&mut rate, 61_000), count(&mut rate, 90_000)];
            assert!(seconds.iter().all(|count| *count <= most), "{bp}: {seconds:?}");
            assert!(bp < 10_000 || seconds[1] >= bp / 10_000, "{bp}: {seconds:?}");
        }
    }

    #[test]
    fn delivery_given_back_is_allowed_again() {
        let limit = Some(Ratio::from_bp(10_000));
        let (mut rate, now) = (Rate::default(), Time::from_micros(60_000_000));
        rate.take(limit, 1, now);
        assert_eq!(rate.room(limit, now), 0);
        rate.give_back(limit);
        assert_eq!(rate.room(limit, now), 1);
    }

    #[test]
    fn clock_set_back_delays_one_interval_at_most() {
        let limit = Some(Ratio::from_bp(10_000));
        let mut rate = Rate::default();
        rate.take(limit, 1, Time::from_micros(3_600_000_000));
        let now = Time::from_micros(60_000_000);
        assert_eq!(rate.bounded(limit, now).wait(now), Duration::from_secs(1));
    }

    #[test]
    fn queue_without_a_rate_is_not_limited() {
        let mut rate = Rate::default();
        rate.take(None, 1_000, Time::ZERO);
        assert_eq!(rate.room(None, Time::ZERO), u32::MAX);
    }
}
