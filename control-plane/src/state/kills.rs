//! Kills of a snapshot, by pattern.
//!
//! A kill expires by the wall clock and without a write: readers pass the present time and get the kills in
//! force. Expired kills stay in the store until they are cleaned up. A kill that this version cannot read is
//! left out, since its end is unknown.
//!
//! The expiry is by the clock of the replica that accepted the kill; other clocks may differ. A service never
//! gets more remaining time than the kill was given. Each replica records by its monotonic clock since when
//! it holds a kill, so that a clock that is ahead cleans up none.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_core::kill::TIME_TO_LIVE;
use damper_core::{Kill, Pattern, RouteKey};
use damper_proto::{convert, v1};
use prost::Message as _;
use rpds::RedBlackTreeMapSync;

use crate::state::stored::decoded_whole;

/// Age up to which the transit time of a kill is trusted; a longer one counts as a difference of clocks.
const CLOCKS_AGREE: Duration = Duration::from_secs(2);

/// All kills at one revision, expired ones included.
#[derive(Clone, Debug)]
pub(crate) struct KillTable {
    kills: RedBlackTreeMapSync<Pattern, Arc<StoredKill>>,
}

/// Kill as stored.
#[derive(Debug)]
pub(crate) struct StoredKill {
    /// With revision, time and author; the remaining time is not stored.
    pub(crate) wire: v1::KillSwitch,
    pub(crate) kill: Kill,
    /// By the clock of the server that accepted it.
    pub(crate) expires_at: SystemTime,
    /// Time at which this replica received it.
    held_since: Instant,
    /// True if it was set when this replica received it, so its remaining time is also known by the monotonic
    /// clock.
    arrived: bool,
}

impl KillTable {
    /// No kill.
    pub(crate) fn none() -> Self {
        Self { kills: RedBlackTreeMapSync::new_sync() }
    }

    /// Adds the kill stored for a pattern; `arrived`: it was set just now.
    pub(crate) fn set(&mut self, pattern: &Pattern, value: &[u8], revision: u64, arrived: bool) {
        let read = StoredKill::read(pattern, value, revision);
        match read.map(|stored| if arrived { stored.arrived() } else { stored }) {
            Some(stored) => self.kills.insert_mut(pattern.clone(), Arc::new(stored)),
            None => self.remove(pattern),
        }
    }

    /// Adds a kill, or replaces the one of its key.
    pub(crate) fn put(&mut self, kill: Arc<StoredKill>) {
        self.kills.insert_mut(kill.kill.pattern().clone(), kill);
    }

    /// Removes the kill with this pattern.
    pub(crate) fn remove(&mut self, pattern: &Pattern) {
        self.kills.remove_mut(pattern);
    }

    /// Returns the number of stored kills.
    pub(crate) fn stored_count(&self) -> usize {
        self.kills.size()
    }

    /// Returns the kill with this pattern, in force or expired.
    pub(crate) fn stored(&self, pattern: &Pattern) -> Option<&Arc<StoredKill>> {
        self.kills.get(pattern)
    }

    /// Iterates over all stored kills, sorted by pattern.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<StoredKill>> {
        self.kills.values()
    }

    /// Iterates over the kills in force, sorted by pattern.
    pub(crate) fn in_force(&self, now: SystemTime) -> impl Iterator<Item = &Arc<StoredKill>> {
        self.all().filter(move |stored| stored.remaining(now).is_some())
    }

    /// Returns the strictest kill in force on a route: one that also blocks first attempts, then the longest.
    pub(crate) fn of_route(&self, route: &RouteKey, now: SystemTime) -> Option<&Arc<StoredKill>> {
        let matching = self.in_force(now).filter(|stored| stored.kill.pattern().matches(route));
        matching.max_by_key(|stored| (stored.kill.calls(), stored.expires_at))
    }

    /// Returns the oldest kill in force on a route, whose effect shows first.
    pub(crate) fn first_of_route(&self, route: &RouteKey, now: SystemTime) -> Option<&Arc<StoredKill>> {
        let matching = self.in_force(now).filter(|stored| stored.kill.pattern().matches(route));
        matching.max_by_key(|stored| stored.age(now))
    }

    /// Returns true if the other table has the same kills in the same versions.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let versions = |(pattern, stored): (_, &Arc<StoredKill>)| {
            // The expiry distinguishes kills that were set from memory at one revision.
            (pattern, stored.kill.revision(), stored.expires_at)
        };
        self.kills.iter().map(versions).eq(other.kills.iter().map(versions))
    }
}

impl StoredKill {
    pub(crate) fn read(pattern: &Pattern, value: &[u8], revision: u64) -> Option<Self> {
        let read = || {
            let wire: v1::KillSwitch = decoded_whole(value)?;
            let wire = v1::KillSwitch { key: Some(pattern.into()), revision, remaining: None, ..wire };
            let kill = Kill::new(pattern.clone(), wire.calls, wire.reason.clone(), revision);
            let kill = kill.map_err(|faults| faults.to_string())?;
            let expires_at = wire.expires_at.and_then(|at| SystemTime::try_from(at).ok());
            let expires_at = expires_at.ok_or_else(|| "expires_at: is no time".to_owned())?;
            Ok::<_, String>(Self { wire, kill, expires_at, held_since: Instant::now(), arrived: false })
        };
        let warn = |problem: &String| {
            tracing::warn!(%pattern, revision, problem, "stored kill cannot be read and is not in force");
        };
        read().inspect_err(warn).ok()
    }

    /// Returns the value to store for a kill.
    pub(crate) fn value(kill: &v1::KillSwitch) -> Vec<u8> {
        v1::KillSwitch { revision: 0, remaining: None, unstored: false, ..kill.clone() }.encode_to_vec()
    }

    /// Returns the kill as set just now. If the clocks agree it is held from its start, so it ends by both
    /// clocks at once.
    pub(crate) fn arrived(self) -> Self {
        let lag = SystemTime::now().duration_since(self.updated_at()).ok().filter(|lag| *lag <= CLOCKS_AGREE);
        let held_since = self.held_since.checked_sub(lag.unwrap_or_default()).unwrap_or(self.held_since);
        Self { arrived: true, held_since, ..self }
    }

    /// Returns its remaining time; `None` once it has expired. By the wall clock, which may be ahead of the
    /// one by which it was set: a kill set while this replica was running also lasts its whole time by the
    /// monotonic clock.
    pub(crate) fn remaining(&self, now: SystemTime) -> Option<Duration> {
        self.remaining_by(now, Instant::now())
    }

    fn remaining_by(&self, now: SystemTime, steady: Instant) -> Option<Duration> {
        let by_wall = self.expires_at.duration_since(now).unwrap_or_default();
        let by_steady = if self.arrived { self.still_to_hold(steady) } else { Duration::ZERO };
        Some(by_wall.max(by_steady)).filter(|left| !left.is_zero())
    }

    /// When it was set, by the clock of the server that took it.
    pub(crate) fn updated_at(&self) -> SystemTime {
        let set_at = self.wire.updated_at.and_then(|at| SystemTime::try_from(at).ok());
        set_at.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns the time since it was set; 0 if that is unknown or a clock is behind.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        let set_at = self.wire.updated_at.and_then(|at| SystemTime::try_from(at).ok());
        set_at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default()
    }

    /// Returns its full length; the maximum if that is unknown.
    pub(crate) fn time_to_live(&self) -> Duration {
        let set_at = self.wire.updated_at.and_then(|at| SystemTime::try_from(at).ok());
        let full = set_at.and_then(|at| self.expires_at.duration_since(at).ok());
        full.map_or(TIME_TO_LIVE.max, |full| full.min(TIME_TO_LIVE.max))
    }

    /// Returns the time until this replica has held it for its full length, by the monotonic clock.
    pub(crate) fn still_to_hold(&self, now: Instant) -> Duration {
        self.time_to_live().saturating_sub(now.saturating_duration_since(self.held_since))
    }

    /// Returns its form for operators; `None` once it has expired.
    pub(crate) fn shown(&self, now: SystemTime) -> Option<v1::KillSwitch> {
        let remaining = self.remaining(now)?;
        Some(v1::KillSwitch {
            remaining: prost_types::Duration::try_from(remaining).ok(),
            ..self.wire.clone()
        })
    }

    /// Returns its form for clients; `None` once it has expired.
    pub(crate) fn sent(&self, now: SystemTime) -> Option<v1::ActiveKill> {
        // Only a clock that is behind leaves more than the full length.
        let remaining = self.remaining(now)?.min(self.time_to_live());
        let expires_at = Some(self.expires_at);
        Some((&convert::ActiveKill { kill: self.kill.clone(), remaining, expires_at }).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_never_gets_more_time_than_the_kill_has() {
        let set_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |seconds: i64| match u64::try_from(seconds) {
            Ok(seconds) => set_at + Duration::from_secs(seconds),
            Err(_) => set_at - Duration::from_secs(seconds.unsigned_abs()),
        };
        let wire = v1::KillSwitch {
            reason: "r".to_owned(),
            updated_at: Some(set_at.into()),
            expires_at: Some(at(60).into()),
            ..Default::default()
        };
        let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
        let stored = StoredKill::read(&pattern, &StoredKill::value(&wire), 1).unwrap();
        // This replica's clock, in seconds ahead of when the other took it.
        for (now, left) in [(-3_600, Some(60)), (0, Some(60)), (59, Some(1)), (60, None), (3_600, None)] {
            let sent = stored.sent(at(now)).map(|sent| sent.remaining.unwrap().seconds);
            assert_eq!(sent, left, "at {now}");
        }
        // Set while this replica looked on, it lasts although this replica's clock is ahead of its end.
        let arrived = StoredKill::read(&pattern, &StoredKill::value(&wire), 1).unwrap().arrived();
        let held = |seconds| arrived.held_since + Duration::from_secs(seconds);
        for (now, steady, left) in
            [(3_600, 0, Some(60)), (3_600, 59, Some(1)), (3_600, 60, None), (0, 90, Some(60))]
        {
            let remaining = arrived.remaining_by(at(now), held(steady));
            assert_eq!(remaining.map(|left| left.as_secs()), left, "at {now}, held for {steady}");
        }
        assert_eq!(arrived.sent(at(3_600)).map(|sent| sent.remaining.unwrap().seconds >= 59), Some(true));
        assert!(stored.still_to_hold(stored.held_since) == Duration::from_secs(60));
        assert!(stored.still_to_hold(stored.held_since + Duration::from_secs(61)).is_zero());
        let unknown = v1::KillSwitch { updated_at: None, ..wire };
        let unknown = StoredKill::read(&pattern, &StoredKill::value(&unknown), 1).unwrap();
        assert_eq!(unknown.time_to_live(), TIME_TO_LIVE.max);
    }
}
