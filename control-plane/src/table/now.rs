//! A table brought up to the entries that the writer sees, which are newer than what it was made from by a moment.

use std::collections::HashSet;

use bytes::Bytes;

use super::{GUARDS, RULES, StoredGuard, StoredRule, Subject, TableView};
use crate::store::State;
use crate::writer::Entries;

impl TableView {
    /// The rules and guards as the entries have them. Only what is newer than this table is read again, so that a
    /// change among 100,000 rules costs a look at their revisions.
    pub(crate) fn at(&self, entries: &Entries<'_>) -> Self {
        let same_store = *self.epoch == *entries.epoch();
        if same_store && self.revision == entries.head() {
            return self.clone();
        }
        let known = same_store && self.revision < entries.head();
        let mut now = if known { self.clone() } else { Self::empty(entries.epoch()) };
        let base = now.revision;
        let mut there = 0;
        for (key, entry) in entries.iter().filter(|(key, _)| is_rule_or_guard(key)) {
            there += 1;
            if (entry.revision > base || !known)
                && let Some(subject) = Subject::of_key(key)
            {
                now.set(&subject, &entry.value, entry.revision);
            }
        }
        if now.len() + now.guards.len() != there {
            now.drop_all_but(entries);
        }
        now.revision = entries.head();
        now
    }

    /// What the store has of a rule or guard.
    pub(crate) fn value_of(&self, subject: &Subject) -> Option<Bytes> {
        match subject {
            Subject::Rule(pattern) => Some(StoredRule::value(&self.stored(pattern)?.wire).into()),
            Subject::Guard(pattern) => Some(StoredGuard::value(&self.guards.stored(pattern)?.wire).into()),
            Subject::Kill(_) => None,
        }
    }

    /// Whose a rule or guard is; "" = nobody's.
    pub(crate) fn owner_of(&self, subject: &Subject) -> &str {
        match subject {
            Subject::Rule(pattern) => self.stored(pattern).map_or("", |stored| &stored.wire.owner),
            Subject::Guard(pattern) => self.guards.stored(pattern).map_or("", |stored| &stored.wire.owner),
            Subject::Kill(_) => "",
        }
    }

    fn empty(epoch: &str) -> Self {
        Self::of(&State { epoch: epoch.to_owned(), revision: 0, entries: Default::default() })
    }

    fn drop_all_but(&mut self, entries: &Entries<'_>) {
        let there: HashSet<&str> = entries.iter().map(|(key, _)| key).collect();
        let rules = self.rules.keys().cloned().map(Subject::Rule);
        let guards = self.guards.iter().map(|stored| Subject::Guard(stored.pattern.clone()));
        let gone: Vec<Subject> =
            rules.chain(guards).filter(|subject| !there.contains(subject.key().as_str())).collect();
        for subject in &gone {
            self.remove(subject);
        }
    }
}

fn is_rule_or_guard(key: &str) -> bool {
    key.starts_with(RULES) || key.starts_with(GUARDS)
}
