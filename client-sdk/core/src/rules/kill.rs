//! Kill switch: stops retries on the routes of a pattern, at once and for a limited time.
//!
//! A kill takes precedence over rules and guards. Routes that it matches neither retry nor hedge; a kill of
//! calls rejects first attempts too, also without a rule. Every client ends it when its time expires.
//!
//! A [`Kill`] is immutable. Its holder adds the time until which it is in force ([`TimedKill`]) and sets the
//! [`KillState`] of each route that it matches; there a call compares two numbers. A call keeps the rule it
//! began with, but the kill state is the route's: a kill set during a call applies to it too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fault::{Bounds, Faults};
use crate::rules::pattern::Pattern;
use crate::time::Time;

/// Range of a kill's duration. A kill bridges an incident; permanent limits are rules.
pub const TIME_TO_LIVE: Bounds<Duration> =
    Bounds { min: Duration::from_secs(1), max: Duration::from_secs(24 * 60 * 60) };
/// Default duration.
pub const DEFAULT_TIME_TO_LIVE: Duration = Duration::from_secs(60 * 60);
/// Length of the reason in bytes: operators who meet the kill must be able to read why it was set.
pub const REASON_BYTES: Bounds<u32> = Bounds { min: 1, max: 1024 };
/// Maximum number of kills in force.
pub const MAX_KILLS: usize = 1_000;

/// A kill and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kill {
    pattern: Pattern,
    calls: bool,
    reason: String,
    revision: u64,
}

/// Checks a reason; a fault is at `reason`.
pub fn check_reason(reason: &str, faults: &mut Faults) {
    let length = u32::try_from(reason.len()).unwrap_or(u32::MAX);
    if !(REASON_BYTES.min..=REASON_BYTES.max).contains(&length) {
        faults.add(
            "reason",
            format!("must have between {} and {} bytes, not {length}", REASON_BYTES.min, REASON_BYTES.max),
        );
    } else if reason.trim().is_empty() {
        faults.add("reason", "must not be blank");
    }
}

/// Checks a duration; a fault is at `time_to_live`.
pub fn check_time_to_live(time_to_live: Duration, faults: &mut Faults) {
    TIME_TO_LIVE.check("time_to_live", time_to_live, faults);
}

impl Kill {
    /// Creates a kill for the routes of a pattern. `revision` is that of the last change.
    ///
    /// # Errors
    /// A fault at `reason` if its length is out of range.
    pub fn new(pattern: Pattern, calls: bool, reason: String, revision: u64) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        check_reason(&reason, &mut faults);
        faults.or(Self { pattern, calls, reason, revision })
    }

    /// Returns the pattern of its routes.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns true if first attempts are rejected too.
    #[must_use]
    pub fn calls(&self) -> bool {
        self.calls
    }

    /// Returns the reason, for the application's error message and the log.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

/// A kill with its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedKill {
    /// The kill.
    pub kill: Arc<Kill>,
    /// Time from which it no longer applies.
    pub until: Time,
}

impl TimedKill {
    /// Returns the remaining time; zero if it has expired.
    #[must_use]
    pub fn remaining(&self, now: Time) -> Duration {
        self.until.since(now)
    }
}

/// Returns the kill of calls that lasts longest, of the kills that match a route.
pub fn refusing<'a>(kills: impl IntoIterator<Item = &'a TimedKill>, now: Time) -> Option<&'a TimedKill> {
    let rejects = |held: &&TimedKill| held.kill.calls() && held.until > now;
    kills.into_iter().filter(rejects).max_by_key(|held| held.until)
}

/// Kills in force on one route: times in microseconds; zero: never.
#[derive(Debug, Default)]
pub struct KillState {
    repeats_until: AtomicU64,
    calls_until: AtomicU64,
}

impl KillState {
    /// Sets the kills that match the route, replacing earlier ones.
    pub fn obey<'a>(&self, kills: impl IntoIterator<Item = &'a TimedKill>) {
        let (mut repeats, mut calls) = (Time::ZERO, Time::ZERO);
        for TimedKill { kill, until } in kills {
            repeats = repeats.max(*until);
            if kill.calls() {
                calls = calls.max(*until);
            }
        }
        self.calls_until.store(calls.as_micros(), Ordering::Relaxed);
        self.repeats_until.store(repeats.as_micros(), Ordering::Relaxed);
    }

    /// Returns the time until which retries and hedges are stopped; a past time if none is.
    #[must_use]
    pub fn until(&self) -> Time {
        Time::from_micros(self.repeats_until.load(Ordering::Relaxed))
    }

    /// Returns true if retries and hedges are stopped.
    #[must_use]
    pub fn stops_repeats(&self, now: Time) -> bool {
        now < self.until()
    }

    /// Returns true if first attempts are rejected.
    #[must_use]
    pub fn refuses_calls(&self, now: Time) -> bool {
        now.as_micros() < self.calls_until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Pattern {
        Pattern::parse("*", "*", "*", "*").unwrap()
    }

    #[test]
    fn reason_must_be_given_and_be_readable() {
        for (length, accepted) in [(0, false), (1, true), (1024, true), (1025, false)] {
            let kill = Kill::new(any(), false, "x".repeat(length), 1);
            assert_eq!(kill.is_ok(), accepted, "{length}");
            if let Err(faults) = kill {
                assert_eq!(
                    faults.to_string(),
                    format!("reason: must have between 1 and 1024 bytes, not {length}")
                );
            }
        }
        let blank = Kill::new(any(), false, " \t\n".to_owned(), 1).unwrap_err();
        assert_eq!(blank.to_string(), "reason: must not be blank");
    }

    #[test]
    fn time_to_live_is_between_a_second_and_a_day() {
        let check = |time_to_live, expected: &str| {
            let mut faults = Faults::none();
            check_time_to_live(time_to_live, &mut faults);
            assert_eq!(faults.to_string(), expected);
        };
        check(Duration::from_secs(1), "");
        check(Duration::from_secs(24 * 3600), "");
        check(DEFAULT_TIME_TO_LIVE, "");
        check(Duration::from_millis(999), "time_to_live: must be between 1s and 24h, not 999ms");
        check(Duration::from_secs(24 * 3600 + 1), "time_to_live: must be between 1s and 24h, not 86401s");
    }

    fn held(calls: bool, until: u64) -> TimedKill {
        let kill = Kill::new(any(), calls, format!("until {until}"), 1).unwrap();
        TimedKill { kill: Arc::new(kill), until: Time::from_micros(until) }
    }

    #[test]
    fn kill_state_follows_the_latest_matching_kill() {
        let switch = KillState::default();
        let check = |kills: &[TimedKill], repeats: u64, calls: u64| {
            switch.obey(kills);
            for now in [0, 9, 10, 19, 20, 29, 30, u64::MAX] {
                let found = (
                    switch.stops_repeats(Time::from_micros(now)),
                    switch.refuses_calls(Time::from_micros(now)),
                );
                assert_eq!(found, (now < repeats, now < calls), "{kills:?} at {now}");
            }
        };
        check(&[], 0, 0);
        check(&[held(false, 10)], 10, 0);
        check(&[held(true, 10)], 10, 10);
        check(&[held(true, 10), held(false, 30), held(true, 20)], 30, 20);
        check(&[held(false, 10), held(true, 30)], 30, 30);
        check(&[], 0, 0);
    }

    #[test]
    fn rejected_call_reports_the_kill_that_lasts_longest() {
        let kills = [held(true, 10), held(false, 40), held(true, 20), held(false, 5)];
        let named = |now| refusing(&kills, Time::from_micros(now)).map(|held| held.kill.reason().to_owned());
        assert_eq!(named(0).as_deref(), Some("until 20"));
        assert_eq!(named(19).as_deref(), Some("until 20"));
        assert_eq!(named(20), None, "expired");
        assert_eq!(kills[2].remaining(Time::from_micros(5)), Duration::from_micros(15));
        assert_eq!(kills[2].remaining(Time::from_micros(50)), Duration::ZERO);
    }
}
