//! Snapshot of all rules, guards, queues, kills and tokens at one revision, with recent changes.
//!
//! A snapshot is immutable and shares unchanged entries with its predecessor, so a change among 100,000 rules
//! costs a few tree nodes. Entries are parsed once, when they are read. A stored rule that this version
//! cannot read keeps its place: clients get it as off, because a less specific rule must not silently
//! replace it. Rules under an unreadable guard are off, because their ceilings are unknown. Recent changes
//! are kept by revision, for resuming streams. Queues are not among them: clients do not receive queues.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use damper_core::{Explanation, Guard, Pattern, RouteKey, Rule, Table};
use damper_proto::v1;
use rpds::RedBlackTreeMapSync;

use crate::metrics::Metrics;
use crate::state::guards::GuardTable;
use crate::state::held_kills::HeldKills;
use crate::state::kills::KillTable;
use crate::state::known_store::Unaccepted;
use crate::state::resource_key::ResourceKey;
use crate::state::stored::{StoredGuard, StoredQueue, StoredRule};
use crate::state::tokens::TokenTable;
use damper_store::{Change, Position, StoreContents};

/// Changed patterns that are kept; a client with an older revision gets everything.
const REMEMBERED_PATTERNS: usize = 20_000;

/// Reason why a rule is off that this server cannot read, or not limit as a guard requires.
pub(crate) const UNREAD: &str = "unreadable by this control plane";

/// All rules, guards, queues, kills and tokens at one revision.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) epoch: Arc<str>,
    pub(crate) revision: u64,
    pub(crate) rules: RedBlackTreeMapSync<Pattern, Arc<StoredRule>>,
    pub(crate) guards: GuardTable,
    /// By name.
    pub(crate) queues: RedBlackTreeMapSync<String, Arc<StoredQueue>>,
    pub(crate) kills: KillTable,
    pub(crate) tokens: TokenTable,
    /// Unreadable entries other than rules, guards and queues, as stored.
    pub(crate) others: RedBlackTreeMapSync<String, Bytes>,
    /// Id of the commit that made the revision; 0: unknown.
    commit: u64,
    /// Epochs that an operator made this store the successor of.
    lineage: Arc<[String]>,
    /// Keys of each recent change, and the id of its commit.
    pub(crate) recent: RedBlackTreeMapSync<u64, (u64, Arc<[ResourceKey]>)>,
    /// Revision that was loaded whole, and the id of its commit.
    loaded: (u64, u64),
    pub(crate) recent_subjects: usize,
    /// Time since which the store has not answered.
    pub(crate) stale_since: Option<SystemTime>,
    /// Kills that the store could not accept yet; `kills` contains them.
    held: Arc<HeldKills>,
    /// Other contents of the store, which no operator has accepted.
    pub(crate) unaccepted: Option<Arc<Unaccepted>>,
}

/// Rule that applies to a route, with its reasons and guards.
#[derive(Debug)]
pub(crate) struct RouteExplanation {
    pub(crate) explanation: Explanation,
    /// Unreadable entry that turns off all rules: the nearest rule, or a guard.
    pub(crate) unread: Option<ResourceKey>,
}

impl Snapshot {
    /// Sets the gauges that show this snapshot.
    pub(crate) fn publish_to(&self, metrics: &Metrics) {
        metrics.revision.set(self.revision() as f64);
        metrics.rules.set(self.len() as f64);
        metrics.guards.set(self.guards().len() as f64);
        metrics.queues.set(self.queues.size() as f64);
        metrics.stale.set(if self.stale_since.is_some() { 1.0 } else { 0.0 });
        metrics.unaccepted.set(if self.unaccepted.is_some() { 1.0 } else { 0.0 });
    }

    /// Builds a snapshot of the store's contents.
    pub(crate) fn of(state: &StoreContents) -> Self {
        let mut view = Self {
            epoch: state.epoch.as_str().into(),
            revision: state.revision,
            commit: state.commit,
            lineage: state.lineage.clone().into(),
            loaded: (state.revision, state.commit),
            rules: RedBlackTreeMapSync::new_sync(),
            guards: GuardTable::none(),
            queues: RedBlackTreeMapSync::new_sync(),
            kills: KillTable::none(),
            tokens: TokenTable::none(),
            others: RedBlackTreeMapSync::new_sync(),
            recent: RedBlackTreeMapSync::new_sync(),
            recent_subjects: 0,
            stale_since: None,
            held: Arc::default(),
            unaccepted: None,
        };
        for (key, entry) in &state.entries {
            view.follow(key, Some(&entry.value), entry.revision, false);
        }
        view
    }

    /// Applies the next change of the store.
    pub(crate) fn apply(&mut self, change: &Change) {
        let mut subjects = Vec::with_capacity(change.edits.len());
        for edit in &change.edits {
            let all_read = self.guards.all_read();
            let subject = self.follow(&edit.key, edit.value.as_ref(), change.revision, true);
            let Some(subject) = subject.filter(|subject| subject.pattern().is_some()) else { continue };
            if let ResourceKey::Guard(guard) = &subject
                && !(all_read && self.guards.all_read())
            {
                // An unreadable guard turns its rules off; its next version turns them on again.
                let guarded = self.rules.keys().filter(|pattern| guard.overlaps(pattern));
                subjects.extend(guarded.cloned().map(ResourceKey::Rule));
            }
            subjects.push(subject);
        }
        (self.revision, self.commit) = (change.revision, change.commit);
        self.recent_subjects += subjects.len().max(1);
        self.recent.insert_mut(change.revision, (change.commit, subjects.into()));
        while self.recent_subjects > REMEMBERED_PATTERNS {
            let Some((&oldest, (_, subjects))) = self.recent.first() else { break };
            self.recent_subjects -= subjects.len().max(1);
            self.recent.remove_mut(&oldest);
        }
    }

    pub(crate) fn set(&mut self, subject: &ResourceKey, value: &[u8], revision: u64, arrived: bool) {
        match subject {
            ResourceKey::Rule(pattern) => {
                let stored = StoredRule::read(pattern, value, revision);
                self.rules.insert_mut(pattern.clone(), Arc::new(stored));
            }
            ResourceKey::Guard(pattern) => {
                self.guards.put(Arc::new(StoredGuard::read(pattern, value, revision)));
            }
            ResourceKey::Kill(pattern) => self.kills.set(pattern, value, revision, arrived),
            ResourceKey::Queue(name) => {
                self.queues.insert_mut(name.clone(), Arc::new(StoredQueue::read(name, value, revision)));
            }
        }
    }

    pub(crate) fn remove(&mut self, subject: &ResourceKey) {
        match subject {
            ResourceKey::Rule(pattern) => {
                self.rules.remove_mut(pattern);
            }
            ResourceKey::Guard(pattern) => self.guards.remove(pattern),
            ResourceKey::Kill(pattern) => self.kills.remove(pattern),
            ResourceKey::Queue(name) => {
                self.queues.remove_mut(name);
            }
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

    /// The epochs that an operator made this store the successor of.
    pub(crate) fn lineage(&self) -> &[String] {
        &self.lineage
    }

    /// Returns the snapshot's position in its store's history.
    pub(crate) fn position(&self) -> Position {
        Position { epoch: self.epoch.to_string(), revision: self.revision, commit: self.commit }
    }

    /// Returns the id of the commit that made a revision; `None` if it is not kept.
    pub(crate) fn commit_of(&self, revision: u64) -> Option<u64> {
        let (loaded, by) = self.loaded;
        let commit = match revision {
            _ if revision == self.revision => self.commit,
            _ if revision == loaded => by,
            _ => self.recent.get(&revision)?.0,
        };
        Some(commit).filter(|commit| *commit != 0)
    }

    /// Returns the number of rules, guards, queues, kills and tokens.
    pub(crate) fn entries(&self) -> usize {
        let resources = self.rules.size() + self.guards.len() + self.queues.size();
        resources + self.kills.stored_count() + self.tokens.all().count()
    }

    /// Returns the kills in force in their form for operators.
    pub(crate) fn shown_kills(&self, now: SystemTime) -> Vec<v1::KillSwitch> {
        let shown = self.kills.all().filter_map(|stored| {
            let unstored = self.held.has(stored.kill.pattern());
            Some(v1::KillSwitch { unstored, ..stored.shown(now)? })
        });
        shown.collect()
    }

    /// Returns the kills that the store could not accept yet.
    pub(crate) fn held(&self) -> &Arc<HeldKills> {
        &self.held
    }

    /// Returns the snapshot with held kills in force. Settles those that the store has, unless the store does
    /// not answer now.
    pub(crate) fn holding(&self, held: &mut Arc<HeldKills>) -> Self {
        let is_current = self.stale_since.is_none() && self.unaccepted.is_none();
        if is_current && !held.is_empty() {
            Arc::make_mut(held).settle(&self.kills, self.revision);
        }
        let mut view = self.clone();
        held.apply(&mut view.kills);
        view.held = held.clone();
        view
    }

    /// Returns true if the other snapshot differs in no more than `stale_since`.
    pub(crate) fn same_rules(&self, other: &Self) -> bool {
        self.revision == other.revision
            && self.epoch == other.epoch
            && (Arc::ptr_eq(&self.held, &other.held) || self.kills.same(&other.kills))
    }

    /// Returns the number of rules.
    pub(crate) fn len(&self) -> usize {
        self.rules.size()
    }

    /// All guards.
    pub(crate) fn guards(&self) -> &GuardTable {
        &self.guards
    }

    /// Returns all kills, expired ones included.
    pub(crate) fn kills(&self) -> &KillTable {
        &self.kills
    }

    /// Returns all tokens, expired ones included.
    pub(crate) fn tokens(&self) -> &TokenTable {
        &self.tokens
    }

    /// Returns true if the other snapshot has the same queues in the same versions.
    pub(crate) fn same_queues(&self, other: &Self) -> bool {
        let versions = |(name, stored): (_, &Arc<StoredQueue>)| (name, stored.wire.revision);
        self.epoch == other.epoch && self.queues.iter().map(versions).eq(other.queues.iter().map(versions))
    }

    /// All queues in the order of their names.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&String, &Arc<StoredQueue>)> {
        self.queues.iter()
    }

    /// The queue with this name.
    pub(crate) fn queue(&self, name: &str) -> Option<&Arc<StoredQueue>> {
        self.queues.get(name)
    }

    /// The queues behind a name, in order; `None` = all.
    pub(crate) fn queues_behind<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<StoredQueue>> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.queues.range::<str, _>((name.map_or(Unbounded, Excluded), Unbounded)).map(|(_, stored)| stored)
    }

    /// The revision of a rule, guard, kill or queue.
    pub(crate) fn revision_of(&self, subject: &ResourceKey) -> Option<u64> {
        match subject {
            ResourceKey::Rule(pattern) => self.stored(pattern).map(|stored| stored.wire.revision),
            ResourceKey::Guard(pattern) => self.guards.stored(pattern).map(|stored| stored.wire.revision),
            ResourceKey::Kill(pattern) => self.kills.stored(pattern).map(|stored| stored.wire.revision),
            ResourceKey::Queue(name) => self.queue(name).map(|stored| stored.wire.revision),
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

    /// The rules behind a pattern, in order; `None` = all.
    pub(crate) fn behind<'a>(
        &'a self,
        pattern: Option<&'a Pattern>,
    ) -> impl Iterator<Item = (&'a Pattern, &'a Arc<StoredRule>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rules.range((pattern.map_or(Unbounded, Excluded), Unbounded))
    }

    /// Returns the rule that applies to a route, before guards; `None` also if the nearest one cannot be
    /// read.
    pub(crate) fn winner(&self, route: &RouteKey) -> Option<&Arc<Rule>> {
        self.matching(route).next()?.1.rule.as_ref()
    }

    /// Explains which rule applies to a route and what the guards leave of it.
    pub(crate) fn explain(&self, route: &RouteKey) -> RouteExplanation {
        if let Some((pattern, stored)) = self.matching(route).next()
            && stored.rule.is_none()
        {
            return RouteExplanation {
                explanation: Explanation::default(),
                unread: Some(ResourceKey::Rule(pattern)),
            };
        }
        let mut table: Table = self.matching(route).filter_map(|(_, stored)| stored.rule.clone()).collect();
        let mut unread = None;
        for stored in self.guards.of_route(route) {
            match &stored.guard {
                Some(guard) => {
                    table.insert_guard(guard.clone());
                }
                None => unread = Some(ResourceKey::Guard(stored.pattern.clone())),
            }
        }
        let mut explanation = Explanation::of(&table, route);
        let unread = unread.filter(|_| explanation.winner.is_some());
        if unread.is_some() {
            explanation.in_force = None;
            explanation.cuts.clear();
        }
        RouteExplanation { explanation, unread }
    }

    /// Returns the readable guards that match a route.
    pub(crate) fn guards_of(&self, route: &RouteKey) -> impl Iterator<Item = &Arc<Guard>> {
        self.guards.of_route(route).filter_map(|stored| stored.guard.as_ref())
    }

    /// The stored rules that match a route, the nearest first.
    fn matching(&self, route: &RouteKey) -> impl Iterator<Item = (Pattern, &Arc<StoredRule>)> {
        self.stored_of(Pattern::candidates(route))
    }

    /// The stored rules of these patterns.
    pub(crate) fn stored_of(
        &self,
        patterns: impl Iterator<Item = Pattern>,
    ) -> impl Iterator<Item = (Pattern, &Arc<StoredRule>)> {
        patterns.filter_map(|pattern| {
            let stored = self.rules.get(&pattern)?;
            Some((pattern, stored))
        })
    }

    /// Returns the resources that a revision changed; `None` if it is no longer remembered.
    pub(crate) fn changed_at(&self, revision: u64) -> Option<Arc<[ResourceKey]>> {
        self.recent.get(&revision).map(|(_, subjects)| subjects.clone())
    }

    /// Returns the resources changed after a revision; `None` if it is no longer remembered.
    pub(crate) fn changed_since(&self, revision: u64) -> Option<BTreeSet<ResourceKey>> {
        if revision >= self.revision {
            return Some(BTreeSet::new());
        }
        self.recent.get(&(revision + 1))?;
        let changes = self.recent.range(revision + 1..);
        Some(changes.flat_map(|(_, (_, subjects))| subjects.iter().cloned()).collect())
    }
}
