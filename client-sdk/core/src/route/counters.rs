//! Counters of a route since the driver started.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::latency::Histogram;
use crate::outcome::code::Code;
use crate::outcome::fate::{Ending, Fate};

/// Counters of a route since the driver started. Every ended call has one ending.
pub struct Counters {
    calls: AtomicU64,
    unsent: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
    would_hedges: AtomicU64,
    transparent_resends: AtomicU64,
    without_context: AtomicU64,
    outer_loop: AtomicU64,
    real: [AtomicU64; Fate::ALL.len()],
    would: [AtomicU64; Fate::ALL.len()],
    codes: [AtomicU64; Code::ALL.len()],
    latency: Histogram,
}

impl Counters {
    /// Returns the number of calls begun.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of attempts: first attempts (except of calls that sent nothing or began with a
    /// retry), retries, hedges and transparent resends.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        let sent = self.calls().saturating_sub(self.unsent.load(Ordering::Relaxed));
        sent + self.retries() + self.hedges() + self.transparent_resends()
    }

    /// Returns the number of retries.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Returns the number of hedges.
    #[must_use]
    pub fn hedges(&self) -> u64 {
        self.hedges.load(Ordering::Relaxed)
    }

    /// Returns the number of attempts that would have been hedged in observe mode.
    #[must_use]
    pub fn would_hedges(&self) -> u64 {
        self.would_hedges.load(Ordering::Relaxed)
    }

    /// Returns the number of resends of requests that the server provably had not processed.
    #[must_use]
    pub fn transparent_resends(&self) -> u64 {
        self.transparent_resends.load(Ordering::Relaxed)
    }

    /// Returns the number of calls outside any request's context in a process that serves requests.
    #[must_use]
    pub fn without_context(&self) -> u64 {
        self.without_context.load(Ordering::Relaxed)
    }

    /// Returns the number of calls made for a request in which a call of the route had already failed: a loop
    /// around the retries.
    #[must_use]
    pub fn outer_loop_calls(&self) -> u64 {
        self.outer_loop.load(Ordering::Relaxed)
    }

    /// Returns the number of calls with this ending.
    #[must_use]
    pub fn ended(&self, ending: Ending) -> u64 {
        self.of(ending).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns the endings with their counts, without zeros.
    pub fn endings(&self) -> impl Iterator<Item = (Ending, u64)> {
        Ending::all().map(|ending| (ending, self.ended(ending))).filter(|(_, count)| *count > 0)
    }

    /// Returns the number of attempts with this code.
    #[must_use]
    pub fn code(&self, code: Code) -> u64 {
        self.codes.get(code as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns the latencies of calls.
    #[must_use]
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    /// Counts a call outside any request's context in a process that serves requests.
    pub fn count_without_context(&self) {
        add(&self.without_context);
    }

    /// Counts a call for a request in which a call of the route had already failed.
    pub fn count_outer_loop(&self) {
        add(&self.outer_loop);
    }

    pub(crate) fn count_call(&self) {
        add(&self.calls);
    }

    pub(crate) fn count_unsent(&self) {
        add(&self.unsent);
    }

    pub(crate) fn count_retry(&self) {
        add(&self.retries);
    }

    pub(crate) fn count_hedge(&self) {
        add(&self.hedges);
    }

    pub(crate) fn count_would_hedge(&self) {
        add(&self.would_hedges);
    }

    pub(crate) fn count_transparent_resend(&self) {
        add(&self.transparent_resends);
    }

    pub(crate) fn count_code(&self, code: Code) {
        if let Some(count) = self.codes.get(code as usize) {
            add(count);
        }
    }

    pub(crate) fn count_ending(&self, ending: Ending) {
        if let Some(count) = self.of(ending) {
            add(count);
        }
    }

    fn of(&self, ending: Ending) -> Option<&AtomicU64> {
        let counts = if ending.would { &self.would } else { &self.real };
        counts.get(ending.fate as usize)
    }
}

/// Writes the counters by name, without zeros.
impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = || Code::ALL.into_iter().map(|code| (code.name(), self.code(code)));
        let counts = [
            ("calls", self.calls()),
            ("attempts", self.attempts()),
            ("retries", self.retries()),
            ("hedges", self.hedges()),
            ("would_hedges", self.would_hedges()),
            ("transparent_resends", self.transparent_resends()),
            ("without_context", self.without_context()),
            ("outer_loop_calls", self.outer_loop_calls()),
        ];
        let mut shown = f.debug_map();
        for (name, count) in counts.into_iter().chain(codes()).filter(|(_, count)| *count > 0) {
            shown.entry(&format_args!("{name}"), &count);
        }
        for (ending, count) in self.endings() {
            shown.entry(&format_args!("{ending}"), &count);
        }
        shown.finish()
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            calls: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            hedges: AtomicU64::new(0),
            would_hedges: AtomicU64::new(0),
            transparent_resends: AtomicU64::new(0),
            without_context: AtomicU64::new(0),
            outer_loop: AtomicU64::new(0),
            real: [const { AtomicU64::new(0) }; Fate::ALL.len()],
            would: [const { AtomicU64::new(0) }; Fate::ALL.len()],
            codes: [const { AtomicU64::new(0) }; Code::ALL.len()],
            latency: Histogram::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_shown_by_name_and_without_zeros() {
        let counters = Counters::default();
        assert_eq!(format!("{counters:?}"), "{}");
        counters.count_call();
        counters.count_code(Code::Unavailable);
        counters.count_ending(Ending::real(Fate::Budget));
        assert_eq!(format!("{counters:?}"), "{calls: 1, attempts: 1, UNAVAILABLE: 1, budget: 1}");
    }
}
