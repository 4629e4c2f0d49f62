//! Ejection state of an endpoint, in one atomic word.
//!
//! ```text
//!         it fails and the others do not            the ejection expires
//! used ------------------------------------> ejected ---------------> probed
//!   ^                                          ^                      |   |
//!   |                                          +---- a probe fails ---+   |
//!   +------------------------ a probe succeeds ---------------------------+
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// Time of the first ejection.
pub const EJECTED_FOR: Duration = Duration::from_secs(30);
/// Longest ejection. Each is twice as long as the one before. An endpoint in use for as long as its last
/// ejection starts again with the first.
pub const LONGEST: Duration = Duration::from_secs(300);
/// Interval of probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);

const TIMES_BITS: u32 = 4;
const TIMES_MAX: u64 = (1 << TIMES_BITS) - 1;
const PHASE_BITS: u32 = 2;

/// Ejection state of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Ejection(AtomicU64);

/// Phase of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Used,
    Ejected,
    Probed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    phase: Phase,
    /// Number of ejections, up to [`TIMES_MAX`].
    times: u64,
    /// Used: start. Ejected: end. Probed: time of the next probe.
    ms: u64,
}

impl Ejection {
    pub(super) fn phase(&self) -> Phase {
        self.load().phase
    }

    /// Returns true if a request may be sent.
    pub(super) fn is_usable(&self, now: Time) -> bool {
        let state = self.load();
        state.phase == Phase::Used || state.ms <= millis(now)
    }

    /// Records a request, which is a probe if the ejection has expired.
    pub(super) fn probe_sent(&self, now: Time) {
        let state = self.load();
        if state.phase != Phase::Used && state.ms <= millis(now) {
            let next = State { phase: Phase::Probed, ms: millis(now + PROBE_EVERY), ..state };
            self.change(state, next);
        }
    }

    /// Records a success. Returns true if that ends the ejection.
    pub(super) fn returned(&self, now: Time) -> bool {
        let state = self.load();
        state.phase == Phase::Probed
            && self.change(state, State { phase: Phase::Used, ms: millis(now), ..state })
    }

    /// Ejects the endpoint and returns the time. `None` if another thread was faster, or if it exceeds the
    /// limit together with concurrent ejections.
    pub(super) fn eject(&self, now: Time, is_allowed: impl Fn() -> bool) -> Option<Duration> {
        let state = self.load();
        let used_for = Duration::from_millis(millis(now).saturating_sub(state.ms));
        let starts_again = state.phase == Phase::Used && used_for >= time_out(state.times);
        let times = if starts_again { 1 } else { (state.times + 1).min(TIMES_MAX) };
        let ejected_for = time_out(times);
        let next = State { phase: Phase::Ejected, times, ms: millis(now + ejected_for) };
        if state.phase == Phase::Ejected || !self.change(state, next) {
            return None;
        }
        if !is_allowed() {
            self.change(next, state);
            return None;
        }
        Some(ejected_for)
    }

    fn change(&self, from: State, to: State) -> bool {
        self.0.compare_exchange(from.pack(), to.pack(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn load(&self) -> State {
        State::unpack(self.0.load(Ordering::Acquire))
    }
}

impl State {
    fn pack(self) -> u64 {
        let phase = match self.phase {
            Phase::Used => 0,
            Phase::Ejected => 1,
            Phase::Probed => 2,
        };
        (self.ms << (PHASE_BITS + TIMES_BITS)) | (self.times << PHASE_BITS) | phase
    }

    fn unpack(word: u64) -> Self {
        let phase = match word & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Used,
            1 => Phase::Ejected,
            _ => Phase::Probed,
        };
        Self { phase, times: (word >> PHASE_BITS) & TIMES_MAX, ms: word >> (PHASE_BITS + TIMES_BITS) }
    }
}

/// Returns the time of the nth ejection in a row.
fn time_out(times: u64) -> Duration {
    let doublings = u32::try_from(times.saturating_sub(1)).unwrap_or(u32::MAX).min(31);
    EJECTED_FOR.saturating_mul(1 << doublings).min(LONGEST)
}

fn millis(time: Time) -> u64 {
    time.as_micros() / 1_000
}
