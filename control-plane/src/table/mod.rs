//! All rules, guards, kills and tokens at one revision, as this replica knows them, and what changed lately.
//!
//! A view is immutable and shares all but the changed entries with the one before it, so that a change among
//! 100,000 rules costs a few tree nodes. Entries are parsed once, when they come from the store. A stored rule
//! that this version can not read keeps its place: its pattern is off at the clients, because a wider rule must
//! not silently take over. Where a guard can not be read the rules that it is for are off, because nobody knows
//! how far they may go. The latest changes are remembered by revision, for streams that resume.

mod guards;
mod kills;
mod now;
mod stored;
mod subject;
mod tokens;
mod tried;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::{Explanation, Guard, Pattern, RouteKey, Rule, Table};
use rpds::RedBlackTreeMapSync;

pub(crate) use self::guards::{Exceeded, Guards};
pub(crate) use self::kills::{Kills, StoredKill};
pub(crate) use self::stored::{StoredGuard, StoredRule};
pub(crate) use self::subject::{GUARDS, KILLS, RULES, Subject, decoded};
pub(crate) use self::tokens::{CLUSTER_KEY, StoredToken, TOKENS, Tokens, description, token_key, token_of};
use crate::store::{Change, State};

/// How many changed patterns are remembered in memory; older changes are read from the store.
const REMEMBERED_PATTERNS: usize = 20_000;

/// Why a rule is off that this server can not read, or not limit as a guard wants it.
pub(crate) const UNREAD: &str = "unreadable by this control plane";

/// All rules, guards, kills and tokens at one revision.
#[derive(Clone, Debug)]
pub(crate) struct TableView {
    epoch: Arc<str>,
    revision: u64,
    rules: RedBlackTreeMapSync<Pattern, Arc<StoredRule>>,
    guards: Guards,
    kills: Kills,
    tokens: Tokens,
    /// What each of the latest changes touched.
    recent: RedBlackTreeMapSync<u64, Arc<[Subject]>>,
    recent_subjects: usize,
    /// The store has not answered since.
    pub(crate) stale_since: Option<SystemTime>,
}

/// Why which rule applies to a route, and how far.
#[derive(Debug)]
pub(crate) struct Explained {
    pub(crate) explanation: Explanation,
    /// What can not be read, so that no rule applies: the nearest rule, or a guard.
    pub(crate) unread: Option<Subject>,
}

impl TableView {
    /// Everything in the store.
    pub(crate) fn of(state: &State) -> Self {
        let mut view = Self {
            epoch: state.epoch.as_str().into(),
            revision: state.revision,
            rules: RedBlackTreeMapSync::new_sync(),
            guards: Guards::none(),
            kills: Kills::none(),
            tokens: Tokens::none(),
            recent: RedBlackTreeMapSync::new_sync(),
            recent_subjects: 0,
            stale_since: None,
        };
        for (key, entry) in &state.entries {
            if view.tokens.follow(key, Some(&entry.value), entry.revision) {
                continue;
            }
            if let Some(subject) = Subject::of_key(key) {
                view.set(&subject, &entry.value, entry.revision);
            }
        }
        view
    }

    /// Follows the store by one change, which must be the next one.
    pub(crate) fn apply(&mut self, change: &Change) {
        let mut subjects = Vec::with_capacity(change.edits.len());
        for edit in &change.edits {
            if self.tokens.follow(&edit.key, edit.value.as_ref(), change.revision) {
                continue;
            }
            let Some(subject) = Subject::of_key(&edit.key) else { continue };
            let all_read = self.guards.all_read();
            match &edit.value {
                Some(value) => self.set(&subject, value, change.revision),
                None => self.remove(&subject),
            }
            if let Subject::Guard(guard) = &subject
                && !(all_read && self.guards.all_read())
            {
                // Rules go off with a guard that can not be read, and on again with its next version.
                let guarded = self.rules.keys().filter(|pattern| guard.overlaps(pattern));
                subjects.extend(guarded.cloned().map(Subject::Rule));
            }
            subjects.push(subject);
        }
        self.revision = change.revision;
        self.recent_subjects += subjects.len().max(1);
        self.recent.insert_mut(change.revision, subjects.into());
        while self.recent_subjects > REMEMBERED_PATTERNS {
            let Some((&oldest, subjects)) = self.recent.first() else { break };
            self.recent_subjects -= subjects.len().max(1);
            self.recent.remove_mut(&oldest);
        }
    }

    fn set(&mut self, subject: &Subject, value: &[u8], revision: u64) {
        match subject {
            Subject::Rule(pattern) => {
                let stored = StoredRule::read(pattern, value, revision);
                self.rules.insert_mut(pattern.clone(), Arc::new(stored));
            }
            Subject::Guard(pattern) => {
                self.guards.put(Arc::new(StoredGuard::read(pattern, value, revision)));
            }
            Subject::Kill(pattern) => self.kills.set(pattern, value, revision),
        }
    }

    fn remove(&mut self, subject: &Subject) {
        match subject {
            Subject::Rule(pattern) => {
                self.rules.remove_mut(pattern);
            }
            Subject::Guard(pattern) => self.guards.remove(pattern),
            Subject::Kill(pattern) => self.kills.remove(pattern),
        }
    }

    /// The identity of the store.
    pub(crate) fn epoch(&self) -> &Arc<str> {
        &self.epoch
    }

    /// The revision of the last change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// True if this is the other view with no more than a change of `stale_since`.
    pub(crate) fn same_rules(&self, other: &Self) -> bool {
        self.revision == other.revision && self.epoch == other.epoch
    }

    /// How many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.rules.size()
    }

    /// All guards.
    pub(crate) fn guards(&self) -> &Guards {
        &self.guards
    }

    /// All kills, those included that are over.
    pub(crate) fn kills(&self) -> &Kills {
        &self.kills
    }

    /// All tokens, those included that are over.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The revision of a rule, guard or kill.
    pub(crate) fn revision_of(&self, subject: &Subject) -> Option<u64> {
        match subject {
            Subject::Rule(pattern) => self.stored(pattern).map(|stored| stored.wire.revision),
            Subject::Guard(pattern) => self.guards.stored(pattern).map(|stored| stored.wire.revision),
            Subject::Kill(pattern) => self.kills.stored(pattern).map(|stored| stored.wire.revision),
        }
    }

    /// The rule with this pattern.
    pub(crate) fn stored(&self, pattern: &Pattern) -> Option<&Arc<StoredRule>> {
        self.rules.get(pattern)
    }

    /// All rules in the order of their patterns.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Pattern, &Arc<StoredRule>)> {
        self.rules.iter()
    }

    /// The rules behind a pattern, in order.
    pub(crate) fn after(&self, pattern: &Pattern) -> impl Iterator<Item = (&Pattern, &Arc<StoredRule>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rules.range((Excluded(pattern), Unbounded))
    }

    /// The rule that applies to a route, before guards; none also where the nearest one can not be read.
    pub(crate) fn winner(&self, route: &RouteKey) -> Option<&Arc<Rule>> {
        self.matching(route).next()?.1.rule.as_ref()
    }

    /// Why which rule applies to a route, and what the guards leave of it.
    pub(crate) fn explain(&self, route: &RouteKey) -> Explained {
        if let Some((pattern, stored)) = self.matching(route).next()
            && stored.rule.is_none()
        {
            return Explained { explanation: Explanation::default(), unread: Some(Subject::Rule(pattern)) };
        }
        let mut table: Table = self.matching(route).filter_map(|(_, stored)| stored.rule.clone()).collect();
        let mut unread = None;
        for stored in self.guards.of_route(route) {
            match &stored.guard {
                Some(guard) => {
                    table.insert_guard(guard.clone());
                }
                None => unread = Some(Subject::Guard(stored.pattern.clone())),
            }
        }
        let mut explanation = Explanation::of(&table, route);
        let unread = unread.filter(|_| explanation.winner.is_some());
        if unread.is_some() {
            explanation.in_force = None;
            explanation.cuts.clear();
        }
        Explained { explanation, unread }
    }

    /// The guards that match a route, as far as this version can read them.
    pub(crate) fn guards_of(&self, route: &RouteKey) -> impl Iterator<Item = &Arc<Guard>> {
        self.guards.of_route(route).filter_map(|stored| stored.guard.as_ref())
    }

    /// The stored rules that match a route, the nearest first.
    fn matching(&self, route: &RouteKey) -> impl Iterator<Item = (Pattern, &Arc<StoredRule>)> {
        self.stored_of(Pattern::candidates(route))
    }

    /// The stored rules of these patterns.
    fn stored_of(
        &self,
        patterns: impl Iterator<Item = Pattern>,
    ) -> impl Iterator<Item = (Pattern, &Arc<StoredRule>)> {
        patterns.filter_map(|pattern| {
            let stored = self.rules.get(&pattern)?;
            Some((pattern, stored))
        })
    }

    /// What the change of a revision was about; none where that is no longer remembered.
    pub(crate) fn changed_at(&self, revision: u64) -> Option<Arc<[Subject]>> {
        self.recent.get(&revision).cloned()
    }

    /// What was changed after a revision; none where that is no longer remembered.
    pub(crate) fn changed_since(&self, revision: u64) -> Option<BTreeSet<Subject>> {
        if revision >= self.revision {
            return Some(BTreeSet::new());
        }
        self.recent.get(&(revision + 1))?;
        let changes = self.recent.range(revision + 1..);
        Some(changes.flat_map(|(_, subjects)| subjects.iter().cloned()).collect())
    }
}

#[cfg(test)]
mod tests;
