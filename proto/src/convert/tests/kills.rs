//! Kills as they are sent: what is read of them, and what no clock can have said.

use std::time::{Duration, UNIX_EPOCH};

use damper_core::{Kill, Pattern};
use prost_types::{Duration as WireDuration, Timestamp};

use super::super::{ActiveKill, active_kill};
use super::paths;
use crate::v1;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn active(remaining: Duration) -> ActiveKill {
    let pattern = Pattern::parse("*", "*", "inventory", "*").unwrap();
    let kill = Kill::new(pattern, true, "overload".to_owned(), 7).unwrap();
    ActiveKill { kill, remaining, expires_at: Some(UNIX_EPOCH + Duration::new(1_700_000_000, 250_000_000)) }
}

#[test]
fn a_kill_is_read_as_it_was_written() {
    for remaining in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(3600), DAY] {
        let sent = v1::ActiveKill::from(&active(remaining));
        assert_eq!(active_kill(&sent).unwrap(), active(remaining));
    }
    let without = ActiveKill { expires_at: None, ..active(DAY) };
    assert_eq!(active_kill(&v1::ActiveKill::from(&without)).unwrap(), without);
}

#[test]
fn clock_behind_does_not_extend_a_kill() {
    let sent = v1::ActiveKill::from(&active(DAY + Duration::from_secs(5)));
    assert_eq!(active_kill(&sent).unwrap().remaining, DAY);
}

#[test]
fn remaining_time_is_rounded_up_to_microseconds() {
    let mut sent = v1::ActiveKill::from(&active(DAY));
    sent.remaining = Some(WireDuration { seconds: 1, nanos: 999_999_001 });
    assert_eq!(active_kill(&sent).unwrap().remaining, Duration::from_secs(2));
}

#[test]
fn everything_wrong_with_a_kill_is_named_at_once() {
    assert_eq!(paths(&active_kill(&v1::ActiveKill::default()).unwrap_err()), ["key", "reason", "remaining"]);
    let mut bad = v1::ActiveKill::from(&active(DAY));
    bad.key.as_mut().unwrap().callee_method = "a".to_owned();
    bad.reason = "x".repeat(1025);
    bad.remaining = Some(WireDuration { seconds: -1, nanos: 0 });
    bad.expires_at = Some(Timestamp { seconds: i64::MIN, nanos: i32::MIN });
    assert_eq!(
        paths(&active_kill(&bad).unwrap_err()),
        ["key.callee_method", "reason", "remaining", "expires_at"]
    );
}

#[test]
fn impossible_time_is_rejected() {
    let hostile =
        [(86_400, 1), (86_401, 0), (i64::MAX, 0), (i64::MIN, 0), (0, -1), (0, i32::MIN), (1, 1_000_000_000)];
    for (seconds, nanos) in hostile {
        let mut sent = v1::ActiveKill::from(&active(DAY));
        sent.remaining = Some(WireDuration { seconds, nanos });
        let faults = active_kill(&sent).unwrap_err();
        assert_eq!(
            faults.to_string(),
            format!("remaining: must be between 0ms and 24h, not {seconds} seconds with {nanos} nanos")
        );
    }
    for (seconds, nanos) in [(i64::MIN, 0), (-1, 0), (0, -1), (0, 1_000_000_000)] {
        let mut sent = v1::ActiveKill::from(&active(DAY));
        sent.expires_at = Some(Timestamp { seconds, nanos });
        let read = active_kill(&sent);
        assert_eq!(paths(&read.unwrap_err()), ["expires_at"], "{seconds} {nanos}");
    }
}
