//! The kill switch: stops what is repeated on the routes of a pattern, at once and for a time.
//!
//! A kill goes before every rule and guard. On a route that it matches nothing is retried or hedged; one that
//! says `calls` refuses first sends too, also where no rule applies. Every client ends it by itself when its
//! time is over.
//!
//! A [`Kill`] is what was said. Whoever holds it knows until when it is in force ([`TimedKill`]) and tells the
//! [`Switch`] of each route that it matches; there a call sees it by comparing two numbers. A call keeps the
//! rule it began with, but the switch is the route's: what is thrown while a call is under way holds for it too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fault::{Bounds, Faults};
use crate::rules::pattern::Pattern;
use crate::time::Time;

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
        faults.add(
            "reason",
            format!("must have between {} and {} bytes, not {length}", REASON_BYTES.min, REASON_BYTES.max),
        );
    } else if reason.trim().is_empty() {
        faults.add("reason", "must not be blank");
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

/// A kill, and until when it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedKill {
    /// What is stopped.
    pub kill: Arc<Kill>,
    /// From then on it is not.
    pub until: Time,
}

impl TimedKill {
    /// What is left of its time; zero when it is over.
    #[must_use]
    pub fn remaining(&self, now: Time) -> Duration {
        self.until.since(now)
    }
}

/// Of the kills that match a route the one that refuses calls there, for as long as any does.
pub fn refusing<'a>(kills: impl IntoIterator<Item = &'a TimedKill>, now: Time) -> Option<&'a TimedKill> {
    let refuses = |held: &&TimedKill| held.kill.calls() && held.until > now;
    kills.into_iter().filter(refuses).max_by_key(|held| held.until)
}

/// Until when kills hold on one route, in microseconds; zero = never.
#[derive(Debug, Default)]
pub struct KillState {
    repeats_until: AtomicU64,
    calls_until: AtomicU64,
}

impl KillState {
    /// These kills match the route, and no others.
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

    /// Until when nothing is retried or hedged; what has passed if nothing is stopped.
    #[must_use]
    pub fn until(&self) -> Time {
        Time::from_micros(self.repeats_until.load(Ordering::Relaxed))
    }

    /// Nothing is retried or hedged now.
    #[must_use]
    pub fn stops_repeats(&self, now: Time) -> bool {
        now < self.until()
    }

    /// Nothing is sent at all now.
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
    fn a_reason_must_be_given_and_be_readable() {
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
    fn a_time_to_live_is_between_a_second_and_a_day() {
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
    fn a_switch_goes_by_the_latest_of_the_kills_that_match_and_is_off_without() {
        let switch = KillState::default();
        let check = |kills: &[TimedKill], repeats: u64, calls: u64| {
            switch.obey(kills);
            for now in [0, 9, 10, 19, 20, 29, 30, u64::MAX] {
                let says = (
                    switch.stops_repeats(Time::from_micros(now)),
                    switch.refuses_calls(Time::from_micros(now)),
                );
                assert_eq!(says, (now < repeats, now < calls), "{kills:?} at {now}");
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
    fn the_kill_that_a_refused_call_is_told_of_refuses_calls_the_longest() {
        let kills = [held(true, 10), held(false, 40), held(true, 20), held(false, 5)];
        let named = |now| refusing(&kills, Time::from_micros(now)).map(|held| held.kill.reason().to_owned());
        assert_eq!(named(0).as_deref(), Some("until 20"));
        assert_eq!(named(19).as_deref(), Some("until 20"));
        assert_eq!(named(20), None, "its time is over");
        assert_eq!(kills[2].remaining(Time::from_micros(5)), Duration::from_micros(15));
        assert_eq!(kills[2].remaining(Time::from_micros(50)), Duration::ZERO);
    }
}
