//! The repeat limit: how many repeats a callee serves, whoever sends them.
//!
//! Retries arrive marked, so a callee can bound those of all its callers together without coordination: per
//! method and window of 10 x 1 s
//!
//! ```text
//! repeats <= max(ratio x first sends, min)
//! ```
//!
//! A repeat counts itself first, then asks, and is taken back if it is refused; so the bound holds under any
//! interleaving, as the retry breaker's does. A refused one is answered UNAVAILABLE with the flag up and costs
//! no handler. What a limit in observe mode would refuse is served, so those it would have served are counted
//! apart: it tells how many would be refused if it were enforced, not how many come after the first of those.
//!
//! A repeat is a request whose **sender** repeated it, see [`RepeatMarks::repeated_by`](crate::chain::RepeatMarks::repeated_by). One
//! that merely passes on the flag of a repeat above is a first send of this hop.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{Bounds, Faults, Ratio};
use crate::headers::Repeater;
use crate::policy::Mode;
use crate::time::Time;
use crate::time::window::{Window, WindowShape};

/// `repeat_limit.ratio`
pub const RATIO: Bounds<Ratio> = Bounds { min: Ratio::from_bp(10), max: Ratio::ONE };
/// `repeat_limit.min`
pub const MIN: Bounds<u32> = Bounds { min: 0, max: 1000 };

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RepeatLimit {
    /// `observe` counts what would be refused, `enforce` refuses.
    pub mode: Mode,
    /// So many repeats per first send in the window.
    pub ratio: Ratio,
    /// So many are always served.
    pub min: u32,
}

impl RepeatLimit {
    pub(crate) fn check(&self, path: &str, faults: &mut Faults) {
        RATIO.check(&format!("{path}.ratio"), self.ratio, faults);
        MIN.check(&format!("{path}.min"), self.min, faults);
    }

    /// The same limit doing no more than `mode`: for a local override, which can only reduce.
    #[must_use]
    pub fn at_most(self, mode: Mode) -> Self {
        Self { mode: self.mode.min(mode), ..self }
    }
}

impl Default for RepeatLimit {
    fn default() -> Self {
        Self { mode: Mode::Observe, ratio: Ratio::from_bp(1000), min: 3 }
    }
}

/// What all limits for one served method come to. Those enforced and those observed are combined apart, each
/// to its least ratio and least minimum, so that one that is only observed never refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    enforced: Option<LimitBounds>,
    observed: Option<LimitBounds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitBounds {
    ratio: Ratio,
    min: u32,
}

impl LimitBounds {
    fn and(self, limit: RepeatLimit) -> Self {
        Self { ratio: self.ratio.min(limit.ratio), min: self.min.min(limit.min) }
    }

    fn admits(self, repeats: u64, first_sends: u64) -> bool {
        let by_ratio =
            repeats.saturating_mul(10_000) <= first_sends.saturating_mul(u64::from(self.ratio.bp()));
        by_ratio || repeats <= u64::from(self.min)
    }
}

impl FromIterator<RepeatLimit> for Limits {
    fn from_iter<I: IntoIterator<Item = RepeatLimit>>(limits: I) -> Self {
        let mut all = Self::default();
        for limit in limits {
            let most = match limit.mode {
                Mode::Off => continue,
                Mode::Observe => &mut all.observed,
                Mode::Enforce => &mut all.enforced,
            };
            let alone = LimitBounds { ratio: limit.ratio, min: limit.min };
            *most = Some(most.map_or(alone, |most| most.and(limit)));
        }
        all
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitDecision {
    /// The handler runs.
    Served,
    /// The handler runs; a limit that is only observed would have refused it.
    WouldBeShed,
    /// It is refused.
    Shed,
}

/// One method that this process serves: what came lately, and what has come since the driver started.
#[derive(Debug)]
pub struct Served {
    /// First sends as its successes, repeats that were served as its failures.
    window: Window,
    /// The repeats that an observed limit would have served.
    observed: Window,
    first_sends: AtomicU64,
    repeats: [AtomicU64; Repeater::ALL.len()],
    shed: AtomicU64,
    would_be_shed: AtomicU64,
}

impl Served {
    /// Counts a request that has arrived and says what becomes of it.
    pub fn arrived(&self, repeated_by: Option<Repeater>, limits: Limits, now: Time) -> LimitDecision {
        let Some(repeater) = repeated_by else {
            add(&self.first_sends);
            self.window.count_success(now);
            return LimitDecision::Served;
        };
        if let Some(repeats) = self.repeats.get(repeater as usize) {
            add(repeats);
        }
        if !self.reserve(&self.window, limits.enforced, now) {
            add(&self.shed);
            return LimitDecision::Shed;
        }
        if limits.observed.is_some() && !self.reserve(&self.observed, limits.observed, now) {
            add(&self.would_be_shed);
            return LimitDecision::WouldBeShed;
        }
        LimitDecision::Served
    }

    /// Counts a repeat; if that is one too many it is taken back.
    fn reserve(&self, repeats: &Window, most: Option<LimitBounds>, now: Time) -> bool {
        repeats.count_failure(now);
        let Some(most) = most else { return true };
        let admitted = most.admits(repeats.counts(now).failures, self.window.counts(now).successes);
        if !admitted {
            repeats.take_back_failure(now);
        }
        admitted
    }

    /// Requests that their sender did not repeat.
    #[must_use]
    pub fn first_sends(&self) -> u64 {
        self.first_sends.load(Ordering::Relaxed)
    }

    /// Requests that were repeated so, whatever became of them.
    #[must_use]
    pub fn repeats(&self, by: Repeater) -> u64 {
        self.repeats.get(by as usize).map_or(0, |repeats| repeats.load(Ordering::Relaxed))
    }

    /// Repeats that were refused.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Repeats that were served although a limit that is only observed would have refused them.
    #[must_use]
    pub fn would_be_shed(&self) -> u64 {
        self.would_be_shed.load(Ordering::Relaxed)
    }
}

impl Default for Served {
    /// A method that nothing is known of yet.
    fn default() -> Self {
        Self {
            window: Window::new(WindowShape::default()),
            observed: Window::new(WindowShape::default()),
            first_sends: AtomicU64::new(0),
            repeats: [const { AtomicU64::new(0) }; Repeater::ALL.len()],
            shed: AtomicU64::new(0),
            would_be_shed: AtomicU64::new(0),
        }
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
