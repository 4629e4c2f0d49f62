//! Retry limit of the callee: bounds the retries that a method serves, from all callers together.
//!
//! Retries arrive marked, so a callee can bound those of all callers without coordination. Per method and
//! window of 10 x 1 s
//!
//! ```text
//! retries served <= max(ratio x first attempts, min)
//! ```
//!
//! A retry counts itself first, is then checked, and is taken back if rejected. So the bound holds under any
//! interleaving, as for the retry breaker. A rejected retry gets UNAVAILABLE with the no-more-retry flag
//! and runs no handler. An observed limit serves what it would reject; it counts the retries it would have
//! served separately, so it reports how many would be rejected if it were enforced.
//!
//! A retry is a request that its **sender** marked, see
//! [`RepeatMarks::repeated_by`](crate::chain::RepeatMarks::repeated_by). A request that only passes on the
//! flag of a retry above is a first attempt on this hop.

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

/// Settings of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RepeatLimit {
    /// `observe` counts retries it would reject, `enforce` rejects them.
    pub mode: Mode,
    /// Retries served per first attempt in the window.
    pub ratio: Ratio,
    /// Retries that are always served.
    pub min: u32,
}

impl RepeatLimit {
    pub(crate) fn check(&self, path: &str, faults: &mut Faults) {
        RATIO.check(&format!("{path}.ratio"), self.ratio, faults);
        MIN.check(&format!("{path}.min"), self.min, faults);
    }

    /// Returns the limit with at most this mode, for a local override, which can only reduce.
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

/// All limits of one served method. Enforced and observed limits are combined separately, each to the lowest
/// ratio and minimum, so that an observed limit never rejects.
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

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitDecision {
    /// The handler runs.
    Served,
    /// The handler runs; an observed limit would have rejected the request.
    WouldBeShed,
    /// The request is rejected.
    Shed,
}

/// Counts of one method that this process serves: recent, and since the driver started.
#[derive(Debug)]
pub struct Served {
    /// Successes count first attempts, failures served retries.
    window: Window,
    /// Retries that an observed limit would have served.
    observed: Window,
    first_sends: AtomicU64,
    repeats: [AtomicU64; Repeater::ALL.len()],
    shed: AtomicU64,
    would_be_shed: AtomicU64,
}

impl Served {
    /// Counts a request and returns the decision about it.
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

    /// Counts a retry, and takes it back if it exceeds the limit.
    fn reserve(&self, repeats: &Window, most: Option<LimitBounds>, now: Time) -> bool {
        repeats.count_failure(now);
        let Some(most) = most else { return true };
        let admitted = most.admits(repeats.counts(now).failures, self.window.counts(now).successes);
        if !admitted {
            repeats.take_back_failure(now);
        }
        admitted
    }

    /// Returns the number of first attempts.
    #[must_use]
    pub fn first_sends(&self) -> u64 {
        self.first_sends.load(Ordering::Relaxed)
    }

    /// Returns the number of retries by this repeater, served or not.
    #[must_use]
    pub fn repeats(&self, by: Repeater) -> u64 {
        self.repeats.get(by as usize).map_or(0, |repeats| repeats.load(Ordering::Relaxed))
    }

    /// Returns the number of rejected retries.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Returns the number of served retries that an observed limit would have rejected.
    #[must_use]
    pub fn would_be_shed(&self) -> u64 {
        self.would_be_shed.load(Ordering::Relaxed)
    }
}

impl Default for Served {
    /// Returns the counts of a new method.
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
