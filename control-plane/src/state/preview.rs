//! Snapshot brought up to the writer's entries, which may be slightly newer.

use std::collections::HashSet;

use bytes::Bytes;

use crate::state::resource_key::{GUARDS, QUEUES, RULES, ResourceKey};
use crate::state::snapshot::Snapshot;
use crate::state::stored::{StoredGuard, StoredQueue, StoredRule};
use damper_store::StoreContents;
use damper_store::writer::EntriesView;

impl Snapshot {
    /// Returns a snapshot with the rules, guards and queues of the entries. Parses only entries newer than this
    /// snapshot, so a change among 100,000 rules costs a comparison of revisions.
    pub(crate) fn at(&self, entries: &EntriesView<'_>) -> Self {
        let same_store = *self.epoch == *entries.epoch();
        if same_store && self.revision == entries.head() {
            return self.clone();
        }
        let known = same_store && self.revision < entries.head();
        let mut now = if known { self.clone() } else { Self::empty(entries.epoch()) };
        let base = now.revision;
        let mut there = 0;
        for (key, entry) in entries.iter().filter(|(key, _)| is_of_a_set(key)) {
            there += 1;
            if (entry.revision > base || !known)
                && let Some(subject) = ResourceKey::of_key(key)
            {
                now.set(&subject, &entry.value, entry.revision, false);
            }
        }
        if now.len() + now.guards.len() + now.queues.size() != there {
            now.drop_all_but(entries);
        }
        now.revision = entries.head();
        now
    }

    /// Returns the stored value of a rule, guard or queue.
    pub(crate) fn value_of(&self, subject: &ResourceKey) -> Option<Bytes> {
        match subject {
            ResourceKey::Rule(pattern) => Some(StoredRule::value(&self.stored(pattern)?.wire).into()),
            ResourceKey::Guard(pattern) => {
                Some(StoredGuard::value(&self.guards.stored(pattern)?.wire).into())
            }
            ResourceKey::Queue(name) => Some(StoredQueue::value(&self.queue(name)?.wire).into()),
            ResourceKey::Kill(_) => None,
        }
    }

    /// Returns the owner of a rule, guard or queue; empty: none.
    pub(crate) fn owner_of(&self, subject: &ResourceKey) -> &str {
        match subject {
            ResourceKey::Rule(pattern) => self.stored(pattern).map_or("", |stored| &stored.wire.owner),
            ResourceKey::Guard(pattern) => {
                self.guards.stored(pattern).map_or("", |stored| &stored.wire.owner)
            }
            ResourceKey::Queue(name) => self.queue(name).map_or("", |stored| &stored.wire.owner),
            ResourceKey::Kill(_) => "",
        }
    }

    fn empty(epoch: &str) -> Self {
        Self::of(&StoreContents { epoch: epoch.to_owned(), revision: 0, ..StoreContents::default() })
    }

    fn drop_all_but(&mut self, entries: &EntriesView<'_>) {
        let there: HashSet<&str> = entries.iter().map(|(key, _)| key).collect();
        let rules = self.rules.keys().cloned().map(ResourceKey::Rule);
        let guards = self.guards.iter().map(|stored| ResourceKey::Guard(stored.pattern.clone()));
        let queues = self.queues().map(|(name, _)| ResourceKey::Queue(name.clone()));
        let gone: Vec<ResourceKey> = rules
            .chain(guards)
            .chain(queues)
            .filter(|subject| !there.contains(subject.key().as_str()))
            .collect();
        for subject in &gone {
            self.remove(subject);
        }
    }
}

/// True for the kinds that a set of changes contains.
fn is_of_a_set(key: &str) -> bool {
    [RULES, GUARDS, QUEUES].into_iter().any(|kind| key.starts_with(kind))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use damper_core::Pattern;
    use damper_proto::v1;

    use super::*;
    use damper_store::Entry;

    fn state(epoch: &str, revision: u64, rules: &[(&str, u64)], guards: &[(&str, u64)]) -> StoreContents {
        let subject = |kind: fn(Pattern) -> ResourceKey, caller: &str| {
            kind(Pattern::parse(caller, "*", "stock", "*").unwrap()).key()
        };
        let rules = rules.iter().map(|(caller, revision)| (subject(ResourceKey::Rule, caller), *revision));
        let guards = guards.iter().map(|(caller, revision)| (subject(ResourceKey::Guard, caller), *revision));
        let entry = |(key, revision): (String, u64)| {
            let owner = format!("at-{revision}");
            let value = match key.starts_with(RULES) {
                true => StoredRule::value(&v1::Rule { owner, ..Default::default() }),
                false => StoredGuard::value(&v1::Guard { owner, ..Default::default() }),
            };
            (key, Entry { revision, value: value.into() })
        };
        StoreContents {
            epoch: epoch.to_owned(),
            revision,
            entries: rules.chain(guards).map(entry).collect(),
            ..StoreContents::default()
        }
    }

    fn listed(view: &Snapshot) -> Vec<(ResourceKey, u64, String)> {
        let rules = view.iter().map(|(pattern, _)| ResourceKey::Rule(pattern.clone()));
        let guards = view.guards().iter().map(|stored| ResourceKey::Guard(stored.pattern.clone()));
        let subjects = rules.chain(guards);
        subjects.map(|s| (s.clone(), view.revision_of(&s).unwrap(), view.owner_of(&s).to_owned())).collect()
    }

    #[test]
    fn a_table_is_brought_up_to_the_entries_whatever_changed() {
        let table = Snapshot::of(&state("e", 5, &[("a", 1), ("b", 2), ("c", 5)], &[("a", 3), ("b", 4)]));
        let others = [
            state("e", 5, &[("a", 1), ("b", 2), ("c", 5)], &[("a", 3), ("b", 4)]),
            state("e", 7, &[("a", 1), ("b", 6), ("c", 5), ("d", 7)], &[("a", 3), ("b", 4)]),
            state("e", 7, &[("a", 1), ("c", 5)], &[("b", 7)]),
            // As many as before, and others.
            state("e", 8, &[("a", 1), ("c", 5), ("d", 8)], &[("b", 4), ("c", 8)]),
            // Behind the table, and of another store with lower revisions.
            state("e", 4, &[("a", 1), ("b", 2)], &[("a", 3), ("b", 4)]),
            state("f", 9, &[("a", 2)], &[("b", 1)]),
            state("e", 9, &[], &[]),
        ];
        for state in others {
            let none = BTreeMap::new();
            let now = table.at(&EntriesView::new(&state, &none, state.revision));
            assert_eq!(listed(&now), listed(&Snapshot::of(&state)), "{state:?}");
            assert_eq!(now.revision(), state.revision);
        }
    }
}
