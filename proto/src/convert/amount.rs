//! Durations, ratios and percentages: rejects values that the engine's types cannot represent.
//!
//! The engine counts whole microseconds, ten-thousandths and hundredths of a percent. A finer value is
//! rejected, not rounded: an operator reads back what was written.

use std::fmt::Display;
use std::time::Duration;

use damper_core::fault::{Bounded, Bounds, Millis, Percent, Ratio};
use damper_core::{BackoffStep, Faults};

const NANOS_PER_SECOND: i32 = 1_000_000_000;

/// Converts a duration of the wire; `None` if it is negative or malformed. prost's own conversion overflows
/// at the extremes.
#[must_use]
pub fn length(wire: prost_types::Duration) -> Option<Duration> {
    let nanos = u32::try_from(wire.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(wire.seconds).ok()?, nanos))
}

/// Reads a duration; `None` if it is absent or was rejected.
pub(super) fn duration(
    path: &str,
    wire: Option<&prost_types::Duration>,
    bounds: Bounds<Duration>,
    faults: &mut Faults,
) -> Option<Duration> {
    match exact(*wire?, bounds) {
        Ok(BackoffStep::Up(duration)) => return Some(duration),
        Ok(BackoffStep::Down(duration)) => {
            faults.add(path, bounds.excludes(format_args!("-{}", Millis(duration))))
        }
        Err(problem) => faults.add(path, problem),
    }
    None
}

/// Reads a duration that others are compared with; its minimum stands in if it is out of range.
pub(super) fn in_bounds(
    path: &str,
    duration: Duration,
    bounds: Bounds<Duration>,
    faults: &mut Faults,
) -> Duration {
    bounds.check(path, duration, faults);
    if (bounds.min..=bounds.max).contains(&duration) { duration } else { bounds.min }
}

/// Reads a signed duration without a default; `None` was reported.
pub(super) fn required_step(
    path: &str,
    wire: Option<&prost_types::Duration>,
    bounds: Bounds<Duration>,
    faults: &mut Faults,
) -> Option<BackoffStep> {
    let bounds = format!("-{} to {}", Millis(bounds.max), Millis(bounds.max));
    let read = wire.map_or_else(|| Err(format!("required ({bounds})")), |wire| exact(*wire, &bounds));
    read.map_err(|problem| faults.add(path, problem)).ok()
}

/// Reads a duration without a default; `None` was reported.
pub(super) fn required_duration(
    path: &str,
    wire: Option<&prost_types::Duration>,
    bounds: Bounds<Duration>,
    faults: &mut Faults,
) -> Option<Duration> {
    if wire.is_none() {
        faults.add(path, format!("required ({bounds})"));
    }
    duration(path, wire, bounds, faults)
}

/// Returns a well-formed signed duration of whole microseconds, else its fault.
fn exact(wire: prost_types::Duration, bounds: impl Display) -> Result<BackoffStep, String> {
    let prost_types::Duration { seconds, nanos } = wire;
    let well_formed = nanos.unsigned_abs() < NANOS_PER_SECOND.unsigned_abs()
        && !(seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0);
    if !well_formed {
        return Err(format!("{seconds} seconds with {nanos} nanos is not a duration; {bounds}"));
    }
    let magnitude = Duration::new(seconds.unsigned_abs(), nanos.unsigned_abs());
    let down = seconds < 0 || nanos < 0;
    if !magnitude.subsec_nanos().is_multiple_of(1000) {
        let sign = if down { "-" } else { "" };
        return Err(format!("must be in steps of 1us ({bounds}), not {sign}{}ns", magnitude.as_nanos()));
    }
    Ok(if down { BackoffStep::Down(magnitude) } else { BackoffStep::Up(magnitude) })
}

/// Returns the wire form of a duration; saturates beyond the longest, which no checked rule contains.
pub(super) fn to_wire(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

/// Returns the wire form of a signed duration.
pub(super) fn step_to_wire(step: BackoffStep) -> prost_types::Duration {
    match step {
        BackoffStep::Up(size) => to_wire(size),
        BackoffStep::Down(size) => {
            let prost_types::Duration { seconds, nanos } = to_wire(size);
            prost_types::Duration { seconds: -seconds, nanos: -nanos }
        }
    }
}

/// Reads a ratio; `None` if it is absent or was rejected.
pub(super) fn ratio(
    path: &str,
    wire: Option<f64>,
    bounds: Bounds<Ratio>,
    faults: &mut Faults,
) -> Option<Ratio> {
    parts(wire?, 1e4, "0.0001", bounds).map(Ratio::from_bp).map_err(|problem| faults.add(path, problem)).ok()
}

/// Returns the wire form of a ratio.
pub(super) fn ratio_to_wire(ratio: Ratio) -> f64 {
    f64::from(ratio.bp()) / 1e4
}

/// Reads a percentage; `None` if it is absent or was rejected.
pub(super) fn percent(
    path: &str,
    wire: Option<f64>,
    bounds: Bounds<Percent>,
    faults: &mut Faults,
) -> Option<Percent> {
    let read = parts(wire?, 1e2, "0.01", bounds).map(Percent::from_hundredths);
    read.map_err(|problem| faults.add(path, problem)).ok()
}

/// Returns the wire form of a percentage.
pub(super) fn percent_to_wire(percent: Percent) -> f64 {
    f64::from(percent.hundredths()) / 1e2
}

/// Returns a number in parts, `per_unit` of which make 1; else its fault.
fn parts<T: Bounded>(value: f64, per_unit: f64, part: &str, bounds: Bounds<T>) -> Result<u32, String> {
    let parts = (value * per_unit).round();
    if !(0.0..=f64::from(u32::MAX)).contains(&parts) || value < 0.0 {
        return Err(bounds.excludes(Number(value)));
    }
    // Exact for every decimal with that many places: the nearest double of n/10,000 is that of the division.
    if parts / per_unit != value {
        return Err(format!("must be in steps of {part} ({bounds}), not {}", Number(value)));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole and within u32, see above"
    )]
    Ok(parts as u32)
}

/// A number as text, of limited length.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value) = *self;
        if value.fract() == 0.0 && value.abs() < 1e9 { write!(f, "{value}") } else { write!(f, "{value:?}") }
    }
}
