//! The repeat limit: how many repeats a callee serves, whoever sends them.
//!
//! Retries arrive marked, so a callee can bound those of all its callers together without coordination: per
//! method and window
//!
//! ```text
//! repeats <= max(ratio x first sends, min)
//! ```
//!
//! A repeat counts itself first, then asks, and is taken back if it is refused; so the bound holds under any
//! interleaving, as the retry breaker's does. A refused one is answered UNAVAILABLE with the flag up and costs
//! no handler.
//!
//! A repeat is a request whose **sender** repeated it. One that merely passes on the flag of a repeat above is
//! a first send of this hop.

use crate::fault::{Bounds, Faults, Ratio};
use crate::policy::Mode;

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
}

impl Default for RepeatLimit {
    fn default() -> Self {
        Self { mode: Mode::Observe, ratio: Ratio::from_bp(1000), min: 3 }
    }
}
