//! Durations and ratios: what the wire can say and the engine cannot hold is refused here.
//!
//! The engine counts whole microseconds and ten-thousandths. A finer value is refused, not rounded: what an
//! operator reads back is what was written.

use std::time::Duration;

use damper_core::Faults;
use damper_core::Ratio;
use damper_core::fault::{Bounds, Millis};

const NANOS_PER_SECOND: i32 = 1_000_000_000;

/// A duration; `None` if it is absent or was refused.
pub(super) fn duration(
    path: &str,
    wire: Option<&prost_types::Duration>,
    bounds: Bounds<Duration>,
    faults: &mut Faults,
) -> Option<Duration> {
    let prost_types::Duration { seconds, nanos } = *wire?;
    match exact(seconds, nanos) {
        Ok(duration) if duration.subsec_nanos().is_multiple_of(1000) => Some(duration),
        Ok(duration) => {
            faults.add(path, format!("{}ns is finer than 1us; {bounds}", duration.as_nanos()));
            None
        }
        Err(shown) => {
            faults.add(path, format!("{shown} is not in {bounds}"));
            None
        }
    }
}

/// A duration that has no default; `None` was reported.
pub(super) fn required_duration(
    path: &str,
    wire: Option<&prost_types::Duration>,
    bounds: Bounds<Duration>,
    faults: &mut Faults,
) -> Option<Duration> {
    if wire.is_none() {
        faults.add(path, format!("must be said, in {bounds}"));
    }
    duration(path, wire, bounds, faults)
}

/// The duration of a well-formed, non-negative message, else how it is shown.
fn exact(seconds: i64, nanos: i32) -> Result<Duration, String> {
    let well_formed = nanos.unsigned_abs() < NANOS_PER_SECOND.unsigned_abs()
        && !(seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0);
    if !well_formed {
        return Err(format!("{seconds} seconds with {nanos} nanos is no duration and"));
    }
    let magnitude = Duration::new(seconds.unsigned_abs(), nanos.unsigned_abs());
    if seconds < 0 || nanos < 0 {
        return Err(format!("-{}", Millis(magnitude)));
    }
    Ok(magnitude)
}

/// The wire's form of a duration. One too long for it, which no checked rule holds, is the longest there.
pub(super) fn to_wire(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

/// A ratio; `None` if it is absent or was refused.
pub(super) fn ratio(
    path: &str,
    wire: Option<f64>,
    bounds: Bounds<Ratio>,
    faults: &mut Faults,
) -> Option<Ratio> {
    let value = wire?;
    let bp = (value * 1e4).round();
    if !(0.0..=f64::from(u32::MAX)).contains(&bp) || value < 0.0 {
        faults.add(path, format!("{} is not in {bounds}", Number(value)));
        return None;
    }
    // Exact for every decimal of four places: the nearest double of n/10,000 is that of the division.
    if bp / 1e4 != value {
        faults.add(path, format!("{} is finer than 0.0001; {bounds}", Number(value)));
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole and within u32, see above"
    )]
    Some(Ratio::from_bp(bp as u32))
}

/// The wire's form of a ratio.
pub(super) fn ratio_to_wire(ratio: Ratio) -> f64 {
    f64::from(ratio.bp()) / 1e4
}

/// A number as people write it, and a very great or small one in a line of readable length.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value) = *self;
        if value.fract() == 0.0 && value.abs() < 1e9 { write!(f, "{value}") } else { write!(f, "{value:?}") }
    }
}
