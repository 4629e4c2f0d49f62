//! Deadlines of calls and the `grpc-timeout` header.
//!
//! A call's deadline is the earliest of: the deadline inherited from the request being served, the call's own
//! `grpc-timeout`, and the rule's `timeout`. Every attempt carries the remaining time (or its own limit, if
//! shorter) as `grpc-timeout`, so that each hop knows how long the one above waits.
//!
//! Source: the gRPC HTTP/2 protocol, "Timeout": at most eight digits and a unit. Microseconds are used up to
//! 99.99 s, because a hop must not lose most of a short budget to rounding.

use std::fmt;
use std::time::Duration;

use crate::time::{Time, micros};

/// The header of the remaining time.
pub const HEADER: &str = "grpc-timeout";

/// Tolerance for a peer's timer: it started from the same number but runs on another clock. A quarter of the
/// limit, if that is shorter.
pub const GRACE: Duration = Duration::from_millis(5);

/// Longest value of the header in bytes: digits and unit.
pub const MAX_VALUE_BYTES: usize = MAX_DIGITS + 1;

const MAX_DIGITS: usize = 8;
const MAX_NUMBER: u64 = 99_999_999;

/// Returns the earliest deadline; `None` if there is none.
#[must_use]
pub fn earliest(deadlines: impl IntoIterator<Item = Option<Time>>) -> Option<Time> {
    deadlines.into_iter().flatten().min()
}

/// Returns true if an event between `began` and `now` ended because of this limit.
#[must_use]
pub fn ended_by(limit: Option<Time>, began: Time, now: Time) -> bool {
    limit.is_some_and(|limit| now + GRACE.min(limit.since(began) / 4) >= limit)
}

/// Parses a `grpc-timeout` header; `None` if it does not follow the protocol.
#[must_use]
pub fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A limit as the value of `grpc-timeout`: at least 1 us, otherwise never longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderValue(Duration);

impl HeaderValue {
    /// Returns the value for an attempt with this limit.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self(limit)
    }
}

impl fmt::Display for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = micros(self.0).max(1);
        let units = [('u', 1), ('m', 1_000), ('S', 1_000_000), ('M', 60_000_000)];
        for (unit, size) in units {
            if us / size <= MAX_NUMBER {
                return write!(f, "{}{unit}", us / size);
            }
        }
        write!(f, "{}H", (us / 3_600_000_000).min(MAX_NUMBER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_follow_the_protocol() {
        let check = |limit: Duration, expected: &str| {
            assert_eq!(HeaderValue::new(limit).to_string(), expected, "{limit:?}");
        };
        check(Duration::ZERO, "1u");
        check(Duration::from_nanos(1), "1u");
        check(Duration::from_millis(1), "1000u");
        check(Duration::from_micros(99_999_999), "99999999u");
        check(Duration::from_secs(100), "100000m");
        check(Duration::from_secs(99_999), "99999000m");
        check(Duration::from_secs(100_000), "100000S");
        check(Duration::MAX, "99999999H");
    }

    #[test]
    fn malformed_values_are_none() {
        for bad in ["", "S", "1", "123456789S", "1x", "-1S", "+1S", "1.5S", " 1S", "1 S"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse(b"0u"), Some(Duration::ZERO));
        assert_eq!(parse(b"5n"), Some(Duration::from_nanos(5)));
        assert_eq!(parse(b"2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse(b"3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse(b"4m"), Some(Duration::from_millis(4)));
    }

    proptest! {
        #[test]
        fn written_timeout_reads_back_no_longer_and_hardly_shorter(us in 1_u64..3_600_000_000_000) {
            let limit = Duration::from_micros(us);
            let text = HeaderValue::new(limit).to_string();
            prop_assert!(text.len() <= MAX_VALUE_BYTES, "{}", text);
            let read = parse(text.as_bytes()).unwrap();
            prop_assert!(read <= limit && limit - read <= limit / 90_000, "{} for {:?}", text, limit);
        }
    }

    #[test]
    fn end_within_the_grace_is_due_to_the_limit() {
        let limit = Some(Time::from_micros(100_000));
        let ended = |began, now| ended_by(limit, Time::from_micros(began), Time::from_micros(now));
        assert!(!ended(0, 94_999) && ended(0, 95_000));
        assert!(!ended(96_000, 98_999) && ended(96_000, 99_000), "a quarter of 4 ms");
        assert!(!ended_by(None, Time::ZERO, Time::from_micros(u64::MAX)));
    }
}
