//! Durations in foreign texts.
//!
//! All targets read decimal seconds (`0.025s`): protobuf's JSON form, and Go's. Sources may also use Go's
//! units (`25ms`, `1m30s`), which Kubernetes objects have.

use std::time::Duration;

/// Returns decimal seconds, as `0.025s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let text = format!("{}.{:06}", duration.as_secs(), duration.subsec_micros());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Returns hours, minutes, seconds and milliseconds, as `1h30m` (GEP-2257), each without those that are 0.
pub(crate) fn units(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    let parts =
        [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (u64::from(millis), "ms")];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let text: String = parts.map(|(number, unit)| format!("{number}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Returns whole milliseconds; `None` if the duration has a fraction of one.
pub(crate) fn whole_millis(duration: Duration) -> Option<u64> {
    let micros = duration.as_micros();
    micros.is_multiple_of(1000).then(|| u64::try_from(micros / 1000).ok()).flatten()
}

/// Returns the duration rounded up to whole milliseconds, at least one.
pub(crate) fn up_to_millis(duration: Duration) -> Duration {
    let millis = duration.as_micros().div_ceil(1000).max(1);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// Reads a duration: numbers with the units of Go, down to whole microseconds.
///
/// # Errors
/// What a duration looks like.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let problem =
        || format!("{text:?} is not a duration in whole microseconds, such as 250ms, 0.25s or 1m30s");
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(problem)?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        nanos = nanos.checked_add(part(number, unit).ok_or_else(problem)?).ok_or_else(problem)?;
        rest = after;
    }
    let micros =
        (!text.is_empty() && nanos.is_multiple_of(1000)).then_some(nanos / 1000).ok_or_else(problem)?;
    u64::try_from(micros).map(Duration::from_micros).map_err(|_| problem())
}

/// Returns the nanoseconds of a number with a unit.
fn part(number: &str, unit: &str) -> Option<u128> {
    let unit: u128 = match unit {
        "h" => 3_600_000_000_000,
        "m" => 60_000_000_000,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" | "\u{b5}s" => 1_000,
        "ns" => 1,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.len() > 24 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let parts = digits(fraction)?.checked_mul(unit)?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    digits(whole)?.checked_mul(unit)?.checked_add(parts / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_seconds_are_read_back() {
        for micros in [0, 1, 1000, 25_000, 1_500_000, 3_600_000_000] {
            let duration = Duration::from_micros(micros);
            assert_eq!(parse(&seconds(duration)), Ok(duration));
        }
        assert_eq!(seconds(Duration::from_millis(25)), "0.025s");
        assert_eq!(seconds(Duration::from_secs(10)), "10s");
    }

    #[test]
    fn units_are_read_back() {
        for millis in [0, 1, 999, 1000, 60_000, 3_600_000, 5_400_007, 86_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&units(duration)), Ok(duration));
        }
        assert_eq!(units(Duration::from_millis(5_400_007)), "1h30m7ms");
    }

    #[test]
    fn units_of_go_are_read() {
        let table = [
            ("250ms", 250_000),
            ("1m30s", 90_000_000),
            ("1.5h", 5_400_000_000),
            ("7us", 7),
            (".5s", 500_000),
        ];
        for (text, micros) in table {
            assert_eq!(parse(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_faults() {
        let digits = "9".repeat(40) + "s";
        for text in ["", "s", "5", "-1s", "1 s", "1d", "1..2s", ".s", "1ns", "1e3s", digits.as_str()] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
