//! Snapshot as entries of a store, to restore a store from it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::state::kills::StoredKill;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::stored::{StoredGuard, StoredQueue, StoredRule};
use crate::state::tokens::{CLUSTER_KEY, StoredToken, token_key};
use damper_store::{Edit, Entry};

impl Snapshot {
    /// Iterates over all entries of the snapshot's store; unreadable ones as stored.
    pub(crate) fn values(&self) -> impl Iterator<Item = (String, Bytes)> {
        let rules = self
            .rules
            .iter()
            .map(|(pattern, stored)| (ResourceKey::Rule(pattern.clone()), stored.value_kept()));
        let guards = self.guards.iter();
        let guards = guards.map(|stored| (ResourceKey::Guard(stored.pattern.clone()), stored.value_kept()));
        let queues = self.queues();
        let queues = queues.map(|(name, stored)| (ResourceKey::Queue(name.clone()), stored.value_kept()));
        let kill = |stored: &StoredKill| StoredKill::value(&stored.wire).into();
        let kills = self.kills.all();
        let kills = kills.map(move |stored| (ResourceKey::Kill(stored.kill.pattern().clone()), kill(stored)));
        let tokens = self.tokens.all();
        let tokens = tokens.map(|token| (token_key(&token.id), StoredToken::value(&token.wire, &token.hash)));
        let key = self.tokens.cluster_key();
        let key = key.map(|key| (CLUSTER_KEY.to_owned(), Bytes::copy_from_slice(key.bytes())));
        let others = self.others.iter().map(|(key, value)| (key.clone(), value.clone()));
        let subjects =
            rules.chain(guards).chain(queues).chain(kills).map(|(subject, value)| (subject.key(), value));
        subjects.chain(tokens).chain(key).chain(others)
    }

    /// Applies one entry.
    pub(crate) fn follow(
        &mut self,
        key: &str,
        value: Option<&Bytes>,
        revision: u64,
        arrived: bool,
    ) -> Option<ResourceKey> {
        let subject = ResourceKey::of_key(key);
        let is_read = if let Some(subject) = &subject {
            match value {
                Some(value) => self.set(subject, value, revision, arrived),
                None => self.remove(subject),
            }
            !matches!(subject, ResourceKey::Kill(pattern) if self.kills.stored(pattern).is_none())
        } else {
            self.tokens.follow(key, value, revision) && self.tokens.has_read(key)
        };
        match value {
            Some(value) if !is_read => self.others.insert_mut(key.to_owned(), value.clone()),
            _ => {
                self.others.remove_mut(key);
            }
        }
        subject
    }
}

impl StoredRule {
    fn value_kept(&self) -> Bytes {
        self.unread.clone().unwrap_or_else(|| Self::value(&self.wire).into())
    }
}

impl StoredGuard {
    fn value_kept(&self) -> Bytes {
        self.unread.clone().unwrap_or_else(|| Self::value(&self.wire).into())
    }
}

impl StoredQueue {
    fn value_kept(&self) -> Bytes {
        self.unread.clone().unwrap_or_else(|| Self::value(&self.wire).into())
    }
}

/// Returns the edits that make a store's entries those of a snapshot.
pub(crate) fn edits_to(table: &Snapshot, entries: &BTreeMap<String, Entry>) -> Vec<Edit> {
    let wanted: BTreeMap<String, Bytes> = table.values().collect();
    let gone = entries.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), None));
    let gone: Vec<_> = gone.collect();
    let is_there = |key: &String, value: &Bytes| entries.get(key).is_some_and(|entry| entry.value == *value);
    let put = wanted.into_iter().filter(|(key, value)| !is_there(key, value));
    put.map(|(key, value)| (key, Some(value)))
        .chain(gone)
        .map(|(key, value)| Edit { before: entries.get(&key).cloned(), key, value })
        .collect()
}
