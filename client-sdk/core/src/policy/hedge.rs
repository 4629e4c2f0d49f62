//! Settings of hedging: a slow call gets another attempt in parallel, and the first success wins.

use std::time::Duration;

use super::check_order;
use crate::fault::{Bounds, Faults, Percent};

/// `hedge.delay`: each of its durations.
pub const HEDGE_DELAY: Bounds<Duration> =
    Bounds { min: Duration::from_millis(1), max: Duration::from_secs(60) };
/// `hedge.delay.percentile.at`
pub const HEDGE_PERCENTILE: Bounds<Percent> =
    Bounds { min: Percent::from_hundredths(5_000), max: Percent::from_hundredths(9_990) };
/// `hedge.max_hedges`
pub const MAX_HEDGES: Bounds<u32> = Bounds { min: 1, max: 4 };

/// Hedges of slow calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hedge {
    /// Wait for a response before the next hedge.
    pub delay: HedgeDelay,
    /// Maximum hedges per call. They count towards `retry.max_attempts` if that is set.
    pub max_hedges: u32,
}

/// Wait for a response before the next hedge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HedgeDelay {
    /// A fixed time.
    Fixed(Duration),
    /// The time within which this share of attempts ended in the last complete window; no hedge while there
    /// are too few samples.
    Percentile {
        /// The share.
        at: Percent,
        /// Lower limit.
        min: Duration,
        /// Upper limit.
        max: Duration,
    },
}

impl Hedge {
    /// Default hedges per call.
    pub const DEFAULT_MAX_HEDGES: u32 = 1;

    pub(super) fn check(&self, faults: &mut Faults) {
        match self.delay {
            HedgeDelay::Fixed(delay) => HEDGE_DELAY.check("hedge.delay.fixed", delay, faults),
            HedgeDelay::Percentile { at, min, max } => {
                HEDGE_PERCENTILE.check("hedge.delay.percentile.at", at, faults);
                HEDGE_DELAY.check("hedge.delay.percentile.min", min, faults);
                HEDGE_DELAY.check("hedge.delay.percentile.max", max, faults);
                check_order("hedge.delay.percentile.max", "min", min, max, faults);
            }
        }
        MAX_HEDGES.check("hedge.max_hedges", self.max_hedges, faults);
    }
}
