//! The last seconds of one route.
//!
//! One slot per second. What a report adds is spread over the slots of the time it covers, so that a process
//! that reports every five seconds looks as steady as it is. Latencies are put where the report arrived: a
//! quantile does not need to know the second.

use std::collections::BTreeMap;
use std::time::Duration;

use damper_core::Ending;

use super::WINDOW;
use super::instance::Totals;

/// The longest time between the end of the window that is read and now.
pub(super) const MAX_LAG: Duration = Duration::from_secs(60);

/// Slots by the number of their second.
#[derive(Debug)]
pub(super) struct Window {
    slots: BTreeMap<u64, Slot>,
    began: u64,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    sums: Sums,
    latency: BTreeMap<u16, u64>,
}

/// Sums over a window; parts of a call are possible, because differences are spread.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) calls: f64,
    pub(super) attempts: f64,
    pub(super) hedges: f64,
    pub(super) fates: BTreeMap<Ending, f64>,
}

impl Sums {
    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.attempts += more.attempts;
        self.hedges += more.hedges;
        for (ending, n) in &more.fates {
            *self.fates.entry(*ending).or_default() += n;
        }
    }
}

impl Window {
    pub(super) fn new(began: Duration) -> Self {
        Self { slots: BTreeMap::new(), began: began.as_secs() }
    }

    /// Spreads what was counted between two times.
    pub(super) fn add(&mut self, from: Duration, to: Duration, added: &Totals) {
        self.began = self.began.min(from.as_secs());
        let oldest = to.as_secs().saturating_sub((WINDOW + MAX_LAG).as_secs());
        self.slots = self.slots.split_off(&oldest);
        let length = to.saturating_sub(from).as_secs_f64();
        for number in from.as_secs().max(oldest)..=to.as_secs() {
            let share = if length > 0.0 {
                let start = from.as_secs_f64().max(number as f64);
                let end = to.as_secs_f64().min(number as f64 + 1.0);
                (end - start).max(0.0) / length
            } else {
                f64::from(u8::from(number == to.as_secs()))
            };
            let part = |n: u64| n as f64 * share;
            let fates = added.fates.iter().filter(|(_, n)| **n > 0);
            let more = Sums {
                calls: part(added.calls),
                attempts: part(added.attempts),
                hedges: part(added.hedges),
                fates: fates.map(|(ending, n)| (*ending, part(*n))).collect(),
            };
            self.slots.entry(number).or_default().sums.add(&more);
        }
        let slot = self.slots.entry(to.as_secs()).or_default();
        for (bucket, n) in added.latency.iter().filter(|(_, n)| **n > 0) {
            *slot.latency.entry(*bucket).or_default() += n;
        }
    }

    /// The sums of the whole seconds before `end`, and how many seconds they are.
    pub(super) fn sums(&self, end: Duration) -> (Sums, f64) {
        let end = end.as_secs();
        let start = end.saturating_sub(WINDOW.as_secs());
        let mut sums = Sums::default();
        for (_, slot) in self.slots.range(start..end) {
            sums.add(&slot.sums);
        }
        let seconds = end.saturating_sub(start.max(self.began)).max(1);
        (sums, seconds as f64)
    }

    /// Latencies reported lately, by bucket.
    pub(super) fn latency(&self, end: Duration) -> BTreeMap<u16, u64> {
        let mut sum = BTreeMap::new();
        for (_, slot) in self.slots.range(end.as_secs().saturating_sub(WINDOW.as_secs())..) {
            for (bucket, n) in &slot.latency {
                *sum.entry(*bucket).or_default() += n;
            }
        }
        sum
    }
}
