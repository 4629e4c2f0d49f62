//! Whether an endpoint is used, in one atomic word.
//!
//! ```text
//!         it fails and the others do not            its time is over
//! used ------------------------------------> ejected ---------------> probed
//!   ^                                          ^                      |   |
//!   |                                          +---- a probe fails ---+   |
//!   +------------------------ a probe succeeds ---------------------------+
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// The first time.
pub const EJECTED_FOR: Duration = Duration::from_secs(30);
/// Each further time twice as long, up to this. An endpoint that was used for as long as it was ejected before begins
/// anew.
pub const LONGEST: Duration = Duration::from_secs(300);
/// From one probe to the next.
const PROBE_EVERY: Duration = Duration::from_secs(1);

const TIMES_BITS: u32 = 4;
const TIMES_MAX: u64 = (1 << TIMES_BITS) - 1;
const PHASE_BITS: u32 = 2;

/// Whether an endpoint is used.
#[derive(Debug, Default)]
pub(super) struct Ejection(AtomicU64);

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Used,
    Ejected,
    Probed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    phase: Phase,
    /// How often it was ejected, up to [`TIMES_MAX`].
    times: u64,
    /// Used: since when. Ejected: until when. Probed: when the next probe may be sent.
    ms: u64,
}

impl Ejection {
    pub(super) fn phase(&self) -> Phase {
        self.load().phase
    }

    /// Whether a request may be sent there.
    pub(super) fn is_usable(&self, now: Time) -> bool {
        let state = self.load();
        state.phase == Phase::Used || state.ms <= millis(now)
    }

    /// A request is sent there: a probe, where the time of its ejection is over.
    pub(super) fn probe_sent(&self, now: Time) {
        let state = self.load();
        if state.phase != Phase::Used && state.ms <= millis(now) {
            let next = State { phase: Phase::Probed, ms: millis(now + PROBE_EVERY), ..state };
            self.change(state, next);
        }
    }

    /// A request succeeded; true if that ends its ejection.
    pub(super) fn returned(&self, now: Time) -> bool {
        let state = self.load();
        state.phase == Phase::Probed
            && self.change(state, State { phase: Phase::Used, ms: millis(now), ..state })
    }

    /// Ejects it, and says for how long; none where another thread was faster, or where it is one too many with what
    /// other threads have ejected meanwhile.
    pub(super) fn eject(&self, now: Time, is_allowed: impl Fn() -> bool) -> Option<Duration> {
        let state = self.load();
        let used_for = Duration::from_millis(millis(now).saturating_sub(state.ms));
        let begins_anew = state.phase == Phase::Used && used_for >= time_out(state.times);
        let times = if begins_anew { 1 } else { (state.times + 1).min(TIMES_MAX) };
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

/// How long the nth ejection in succession lasts.
fn time_out(times: u64) -> Duration {
    let doublings = u32::try_from(times.saturating_sub(1)).unwrap_or(u32::MAX).min(31);
    EJECTED_FOR.saturating_mul(1 << doublings).min(LONGEST)
}

fn millis(time: Time) -> u64 {
    time.as_micros() / 1_000
}
