//! Kills as sent to services: their routes and remaining time.
//!
//! The remaining time is rounded up to whole microseconds, not rejected as a setting would be: the server
//! derives it from its clock, and a kill must not fail for that.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use damper_core::fault::Bounds;
use damper_core::{Faults, Kill, kill};

use super::{amount, key, required};
use crate::v1;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A kill in force when the message was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveKill {
    /// Routes and effect.
    pub kill: Kill,
    /// Remaining time; 0 = expired.
    pub remaining: Duration,
    /// End by the sender's wall clock, for a client that restarts from disk; `None` = unknown.
    pub expires_at: Option<SystemTime>,
}

/// Reads a kill that was sent to this process.
///
/// # Errors
/// All faults by path: `key.callee_method`, `reason`, `remaining`, `expires_at`.
pub fn active_kill(wire: &v1::ActiveKill) -> Result<ActiveKill, Faults> {
    let v1::ActiveKill { key: said, revision, calls, reason, remaining, expires_at } = wire;
    let mut faults = Faults::none();
    let pattern = key(said.as_ref(), &mut faults);
    kill::check_reason(reason, &mut faults);
    let remaining = required("remaining", remaining.as_ref(), read_remaining, &mut faults);
    let expires_at = expires_at.as_ref().and_then(|at| read_wall_time("expires_at", at, &mut faults));
    let (Some(pattern), Some(remaining)) = (pattern, remaining) else { return Err(faults) };
    match Kill::new(pattern, *calls, reason.clone(), *revision) {
        Ok(kill) => faults.or(ActiveKill { kill, remaining, expires_at }),
        Err(_) => Err(faults),
    }
}

/// Reads the remaining time; at most the longest time to live.
fn read_remaining(wire: &prost_types::Duration, faults: &mut Faults) -> Option<Duration> {
    let prost_types::Duration { seconds, nanos } = *wire;
    let bounds = Bounds { min: Duration::ZERO, max: kill::TIME_TO_LIVE.max };
    let (Ok(whole), Ok(part)) = (u64::try_from(seconds), u32::try_from(nanos)) else {
        faults.add("", bounds.excludes(format_args!("{seconds} seconds with {nanos} nanos")));
        return None;
    };
    let remaining = (part < NANOS_PER_SECOND).then(|| Duration::new(whole, part.next_multiple_of(1_000)));
    let remaining = remaining.filter(|remaining| *remaining <= kill::TIME_TO_LIVE.max);
    if remaining.is_none() {
        faults.add("", bounds.excludes(format_args!("{seconds} seconds with {nanos} nanos")));
    }
    remaining
}

/// Reads an instant of the wall clock; `None` was reported.
fn read_wall_time(path: &str, wire: &prost_types::Timestamp, faults: &mut Faults) -> Option<SystemTime> {
    let prost_types::Timestamp { seconds, nanos } = *wire;
    let since = u64::try_from(seconds).ok().zip(u32::try_from(nanos).ok());
    let since = since.filter(|(_, nanos)| *nanos < NANOS_PER_SECOND);
    let time = since.and_then(|(whole, part)| UNIX_EPOCH.checked_add(Duration::new(whole, part)));
    if time.is_none() {
        faults.add(path, format!("{seconds} seconds with {nanos} nanos is no time after 1970"));
    }
    time
}

impl From<&ActiveKill> for v1::ActiveKill {
    /// A sender whose clock is behind sends more than the longest remaining time: limited to that.
    fn from(active: &ActiveKill) -> Self {
        let ActiveKill { kill, remaining, expires_at } = active;
        Self {
            key: Some(kill.pattern().into()),
            revision: kill.revision(),
            calls: kill.calls(),
            reason: kill.reason().to_owned(),
            remaining: Some(amount::to_wire((*remaining).min(kill::TIME_TO_LIVE.max))),
            expires_at: expires_at.map(prost_types::Timestamp::from),
        }
    }
}
