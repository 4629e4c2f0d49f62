//! The kill switch: stops what is repeated on the routes of a pattern, at once and for a time.
//!
//! A kill goes before every rule and guard. On a route that it matches nothing is retried or hedged; one that
//! says `calls` refuses first sends too, also where no rule applies. It has no clock in it: who holds it knows
//! until when it is in force, and every client ends it by itself when its time is over.

use std::time::Duration;

use crate::fault::{Bounds, Faults};
use crate::pattern::Pattern;

/// How long a kill may be in force. It is meant to bridge an incident; what is to last is a rule.
pub const TIME_TO_LIVE: Bounds<Duration> =
    Bounds { min: Duration::from_secs(1), max: Duration::from_secs(24 * 60 * 60) };
/// How long it is in force where nothing is said.
pub const DEFAULT_TIME_TO_LIVE: Duration = Duration::from_secs(60 * 60);
/// The length of the reason: whoever meets the kill must be able to read why it is there.
pub const REASON_BYTES: Bounds<u32> = Bounds { min: 1, max: 1024 };
/// So many can be in force at once.
pub const MAX_KILLS: usize = 1_000;

/// What is stopped, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kill {
    pattern: Pattern,
    calls: bool,
    reason: String,
    revision: u64,
}

/// Checks why something is stopped; a fault is at `reason`.
pub fn check_reason(reason: &str, faults: &mut Faults) {
    let length = u32::try_from(reason.len()).unwrap_or(u32::MAX);
    if !(REASON_BYTES.min..=REASON_BYTES.max).contains(&length) {
        faults.add("reason", format!("{length} bytes are not in {REASON_BYTES}"));
    }
}

/// Checks for how long something is to be stopped; a fault is at `time_to_live`.
pub fn check_time_to_live(time_to_live: Duration, faults: &mut Faults) {
    TIME_TO_LIVE.check("time_to_live", time_to_live, faults);
}

impl Kill {
    /// Stops the routes of a pattern; `revision` is that of the kill's last change.
    ///
    /// # Errors
    /// A reason of no acceptable length, at `reason`.
    pub fn new(pattern: Pattern, calls: bool, reason: String, revision: u64) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        check_reason(&reason, &mut faults);
        faults.or(Self { pattern, calls, reason, revision })
    }

    /// The routes it is for.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// First sends are refused too.
    #[must_use]
    pub fn calls(&self) -> bool {
        self.calls
    }

    /// Why: for the application's error message and the log.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The revision of its last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Pattern {
        Pattern::parse("*", "*", "*", "*").unwrap()
    }

    #[test]
    fn a_reason_must_be_given_and_be_readable() {
        for (length, accepted) in [(0, false), (1, true), (1024, true), (1025, false)] {
            let kill = Kill::new(any(), false, "x".repeat(length), 1);
            assert_eq!(kill.is_ok(), accepted, "{length}");
            if let Err(faults) = kill {
                assert_eq!(faults.to_string(), format!("reason: {length} bytes are not in 1..=1024"));
            }
        }
    }

    #[test]
    fn a_time_to_live_is_between_a_second_and_a_day() {
        let check = |time_to_live, expected: &str| {
            let mut faults = Faults::none();
            check_time_to_live(time_to_live, &mut faults);
            assert_eq!(faults.to_string(), expected);
        };
        check(Duration::from_secs(1), "");
        check(Duration::from_secs(24 * 3600), "");
        check(DEFAULT_TIME_TO_LIVE, "");
        check(Duration::from_millis(999), "time_to_live: 999ms is not in 1s..=24h");
        check(Duration::from_secs(24 * 3600 + 1), "time_to_live: 86401s is not in 1s..=24h");
    }
}
