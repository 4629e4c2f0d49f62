//! Kills and unkills made while the store could not accept them.
//!
//! They are in force from memory at once, on every replica that receives them from a peer, and are written
//! when the store is back. The later of two decisions about a key wins, by the clocks of the replicas that
//! took them. A decision that the store has had, or that a later one replaced, is settled: it is not accepted
//! again, however late a peer repeats it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::Pattern;
use damper_core::kill::{MAX_KILLS, TIME_TO_LIVE};
use damper_proto::{convert, v1};

use crate::state::kills::{KillTable, StoredKill};
use crate::state::resource_key::ResourceKey;
use damper_store::Change;

/// Decision about one key that the store does not have yet.
#[derive(Clone, Debug)]
pub(crate) struct HeldKill {
    pub(crate) wire: v1::HeldKill,
    at: SystemTime,
    kill: Option<Arc<StoredKill>>,
    /// Revision by which the store has had it.
    stored_by: Option<u64>,
}

/// Reason why a decision is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// This or a later decision about the key is known.
    Known,
    /// The limit of waiting decisions is reached.
    Full,
    /// The decision cannot be read.
    Unreadable,
}

/// All held decisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HeldKills {
    held: BTreeMap<Pattern, HeldKill>,
    /// Latest settled decision of each key.
    settled: BTreeMap<Pattern, SystemTime>,
}

impl PartialEq for HeldKill {
    fn eq(&self, other: &Self) -> bool {
        self.wire == other.wire
    }
}

impl HeldKill {
    /// Returns the key of the kill.
    pub(crate) fn key(&self) -> String {
        ResourceKey::Kill(self.pattern().clone()).key()
    }

    /// Returns the value to store; `None` removes the kill.
    pub(crate) fn value(&self) -> Option<Vec<u8>> {
        self.wire.kill.as_ref().map(StoredKill::value)
    }

    pub(crate) fn at(&self) -> SystemTime {
        self.at
    }

    pub(crate) fn pattern(&self) -> Pattern {
        self.wire.key.as_ref().and_then(|key| convert::pattern(key).ok()).expect("it was read from the wire")
    }
}

impl HeldKills {
    /// Accepts a decision of this replica or a peer.
    pub(crate) fn take(&mut self, wire: v1::HeldKill, revision: u64) -> Result<(), NotHeld> {
        let pattern = wire.key.as_ref().and_then(|key| convert::pattern(key).ok());
        let at = wire.at.and_then(|at| SystemTime::try_from(at).ok());
        let (Some(pattern), Some(at)) = (pattern, at) else { return Err(NotHeld::Unreadable) };
        if self.decided_at(&pattern).is_some_and(|known| known >= at) {
            return Err(NotHeld::Known);
        }
        if self.held.len() >= MAX_KILLS && !self.held.contains_key(&pattern) {
            return Err(NotHeld::Full);
        }
        let kill = match &wire.kill {
            Some(kill) => {
                let kill = StoredKill::read(&pattern, &StoredKill::value(kill), revision);
                Some(Arc::new(kill.ok_or(NotHeld::Unreadable)?.arrived()))
            }
            None => None,
        };
        self.held.insert(pattern, HeldKill { wire, at, kill, stored_by: None });
        Ok(())
    }

    /// Returns the time of the latest decision about a key.
    pub(crate) fn decided_at(&self, pattern: &Pattern) -> Option<SystemTime> {
        self.held.get(pattern).map(|held| held.at).max(self.settled.get(pattern).copied())
    }

    /// Records that the store has had a decision by this revision, so it may have ended there since.
    pub(crate) fn stored(&mut self, pattern: &Pattern, at: SystemTime, revision: u64) {
        if let Some(held) = self.held.get_mut(pattern).filter(|held| held.at == at) {
            held.stored_by = Some(revision);
        }
    }

    /// Drops the decisions that a change of the store carries out or follows.
    pub(crate) fn follow(&mut self, change: &Change) {
        for edit in &change.edits {
            if let Some(ResourceKey::Kill(pattern)) = ResourceKey::of_key(&edit.key)
                && self.held.get(&pattern).is_some_and(|held| held.at <= change.at)
            {
                self.forget(&pattern);
            }
        }
    }

    /// Drops the decisions that the store has: its kills are `stored`, at a revision.
    pub(crate) fn settle(&mut self, stored: &KillTable, revision: u64) {
        let is_stored = |pattern: &Pattern, held: &HeldKill| {
            let there = stored.stored(pattern).map(|kill| kill.updated_at());
            let is_shown = match &held.kill {
                Some(kill) => there.is_some_and(|at| at == kill.updated_at() || at > held.at),
                None => there.is_none_or(|at| at > held.at),
            };
            is_shown || held.stored_by.is_some_and(|stored_by| stored_by <= revision)
        };
        let done: Vec<Pattern> = self
            .held
            .iter()
            .filter(|(pattern, held)| is_stored(pattern, held))
            .map(|(pattern, _)| pattern.clone())
            .collect();
        for pattern in done {
            self.forget(&pattern);
        }
        // Longer than the longest kill.
        let oldest = SystemTime::now() - TIME_TO_LIVE.max - Duration::from_secs(3600);
        self.settled.retain(|_, at| *at > oldest);
    }

    /// Settles the decision about a key.
    fn forget(&mut self, pattern: &Pattern) {
        let Some(held) = self.held.remove(pattern) else { return };
        self.settled.insert(pattern.clone(), held.at);
        if self.settled.len() > MAX_KILLS {
            let oldest = self.settled.iter().min_by_key(|(_, at)| **at).map(|(pattern, _)| pattern.clone());
            oldest.and_then(|oldest| self.settled.remove(&oldest));
        }
    }

    /// Applies the decisions on top of the store's kills.
    pub(crate) fn apply(&self, kills: &mut KillTable) {
        for (pattern, held) in &self.held {
            match &held.kill {
                Some(kill) => kills.put(kill.clone()),
                None => kills.remove(pattern),
            }
        }
    }

    /// Iterates over the decisions that wait for the store.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldKill> {
        self.held.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns true if a kill with this key is in force from memory.
    pub(crate) fn has(&self, pattern: &Pattern) -> bool {
        self.held.get(pattern).is_some_and(|held| held.kill.is_some())
    }
}
