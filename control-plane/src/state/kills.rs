//! The kills of a table, by their patterns.
//!
//! A kill is over when its time is, by the wall clock and without a write: whoever reads kills says when "now" is
//! and sees those in force. What is over lies in the store until it is cleared away (see [`crate::api::kills`]). A kill
//! that this version can not read is left out, since nobody knows until when it would be in force.
//!
//! The clock that said when a kill ends is that of the replica which took it; another's may differ. To services a kill
//! never has more time left than it was given. From when a replica holds a kill by its own steady clock is kept, so
//! that none is cleared away by a clock that is ahead.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_core::kill::TIME_TO_LIVE;
use damper_core::{Kill, Pattern, RouteKey};
use damper_proto::{convert, v1};
use prost::Message as _;
use rpds::RedBlackTreeMapSync;

use crate::state::stored::decoded_whole;

/// The time since a kill was set is taken for the way here up to this, and beyond for a difference of clocks.
const CLOCKS_AGREE: Duration = Duration::from_secs(2);

/// All kills at one revision, those included that are over.
#[derive(Clone, Debug)]
pub(crate) struct KillTable {
    kills: RedBlackTreeMapSync<Pattern, Arc<StoredKill>>,
}

/// A kill as stored.
#[derive(Debug)]
pub(crate) struct StoredKill {
    /// With its revision, when and by whom it was set; what is left of its time is nobody's to store.
    pub(crate) wire: v1::KillSwitch,
    pub(crate) kill: Kill,
    /// By the clock of the server that took it.
    pub(crate) expires_at: SystemTime,
    /// Since when this replica holds it.
    held_since: Instant,
    /// It was set when this replica got it, so that what is left of its time is known by the steady clock too.
    arrived: bool,
}

impl KillTable {
    /// No kill.
    pub(crate) fn none() -> Self {
        Self { kills: RedBlackTreeMapSync::new_sync() }
    }

    /// Takes up what is stored for a pattern; `arrived`: it was set just now, not at some time before.
    pub(crate) fn set(&mut self, pattern: &Pattern, value: &[u8], revision: u64, arrived: bool) {
        let read = StoredKill::read(pattern, value, revision);
        match read.map(|stored| if arrived { stored.arrived() } else { stored }) {
            Some(stored) => self.kills.insert_mut(pattern.clone(), Arc::new(stored)),
            None => self.remove(pattern),
        }
    }

    /// Puts one in the place of its key's.
    pub(crate) fn put(&mut self, kill: Arc<StoredKill>) {
        self.kills.insert_mut(kill.kill.pattern().clone(), kill);
    }

    /// Takes out the kill of this pattern.
    pub(crate) fn remove(&mut self, pattern: &Pattern) {
        self.kills.remove_mut(pattern);
    }

    /// How many are stored.
    pub(crate) fn stored_count(&self) -> usize {
        self.kills.size()
    }

    /// The kill with this pattern, in force or over.
    pub(crate) fn stored(&self, pattern: &Pattern) -> Option<&Arc<StoredKill>> {
        self.kills.get(pattern)
    }

    /// All that are stored, in the order of their patterns.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<StoredKill>> {
        self.kills.values()
    }

    /// Those in force, in the order of their patterns.
    pub(crate) fn in_force(&self, now: SystemTime) -> impl Iterator<Item = &Arc<StoredKill>> {
        self.all().filter(move |stored| stored.remaining(now).is_some())
    }

    /// The kill in force that stops most on a route: one that refuses first sends too, then the one that lasts
    /// longest.
    pub(crate) fn of_route(&self, route: &RouteKey, now: SystemTime) -> Option<&Arc<StoredKill>> {
        let matching = self.in_force(now).filter(|stored| stored.kill.pattern().matches(route));
        matching.max_by_key(|stored| (stored.kill.calls(), stored.expires_at))
    }

    /// The kill in force on a route that was set before all others: the first whose effect shows.
    pub(crate) fn first_of_route(&self, route: &RouteKey, now: SystemTime) -> Option<&Arc<StoredKill>> {
        let matching = self.in_force(now).filter(|stored| stored.kill.pattern().matches(route));
        matching.max_by_key(|stored| stored.age(now))
    }

    /// True if the other table has the same kills in the same versions.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let versions = |(pattern, stored): (_, &Arc<StoredKill>)| {
            // The end tells apart kills that were set from memory at one revision.
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
            tracing::warn!(%pattern, revision, problem, "a stored kill can not be read; it is not in force");
        };
        read().inspect_err(warn).ok()
    }

    /// The value to store for a kill.
    pub(crate) fn value(kill: &v1::KillSwitch) -> Vec<u8> {
        v1::KillSwitch { revision: 0, remaining: None, unstored: false, ..kill.clone() }.encode_to_vec()
    }

    /// The same, set just now. Where the clocks agree it is held from when it was set, so that it ends by both clocks
    /// at once.
    pub(crate) fn arrived(self) -> Self {
        let lag = SystemTime::now().duration_since(self.updated_at()).ok().filter(|lag| *lag <= CLOCKS_AGREE);
        let held_since = self.held_since.checked_sub(lag.unwrap_or_default()).unwrap_or(self.held_since);
        Self { arrived: true, held_since, ..self }
    }

    /// What is left of its time; none once it is over. By the wall clock, which may be ahead of the one by which it
    /// was set: one that was set while this replica looked on lasts for its whole time by the steady clock too.
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

    /// How long ago it was set; nothing where a clock is behind, or where that is not known.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        let set_at = self.wire.updated_at.and_then(|at| SystemTime::try_from(at).ok());
        set_at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default()
    }

    /// For how long it was set; the longest there is where that is not known.
    pub(crate) fn time_to_live(&self) -> Duration {
        let set_at = self.wire.updated_at.and_then(|at| SystemTime::try_from(at).ok());
        let said = set_at.and_then(|at| self.expires_at.duration_since(at).ok());
        said.map_or(TIME_TO_LIVE.max, |said| said.min(TIME_TO_LIVE.max))
    }

    /// How long until this replica has held it for its whole time, by a clock that nobody can set.
    pub(crate) fn still_to_hold(&self, now: Instant) -> Duration {
        self.time_to_live().saturating_sub(now.saturating_duration_since(self.held_since))
    }

    /// As operators see it; none once it is over.
    pub(crate) fn shown(&self, now: SystemTime) -> Option<v1::KillSwitch> {
        let remaining = self.remaining(now)?;
        Some(v1::KillSwitch {
            remaining: prost_types::Duration::try_from(remaining).ok(),
            ..self.wire.clone()
        })
    }

    /// As services get it; none once it is over.
    pub(crate) fn sent(&self, now: SystemTime) -> Option<v1::ActiveKill> {
        // More than its whole time is only left by a clock that is behind.
        let remaining = self.remaining(now)?.min(self.time_to_live());
        let expires_at = Some(self.expires_at);
        Some((&convert::ActiveKill { kill: self.kill.clone(), remaining, expires_at }).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_told_no_more_time_than_a_kill_was_given() {
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
