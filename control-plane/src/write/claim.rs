//! The owner in whose name a set is applied, and the resulting limits: resources of other owners are only
//! changed or deleted with `take_over`, and `prune` selects what is deleted without being in the set.
//!
//! The decision is made twice: on the snapshot of this replica for dry runs and faults, and by the writer on
//! the current entries (see [`EditPlanner`]). The store may change between the two; only the second decision
//! counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1::{self, rule_result};
use damper_store::writer::{EditPlanner, EntriesView, ProposedEdit};

use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::change_set::{ChangeSet, ResourceChange, Written};

/// The owner in whose name a set is applied.
#[derive(Clone, Debug)]
pub(crate) struct OwnershipClaim {
    /// Empty: each change uses the owner that it names.
    owner: String,
    take_over: bool,
    prune: v1::Prune,
}

/// The resolution of a set on a snapshot.
#[derive(Debug)]
pub(crate) struct ResolvedSet {
    /// The result of each change, in the order of the set.
    pub(crate) outcome: Vec<rule_result::Change>,
    /// Pruned subjects in the order of their keys, rules first.
    pub(crate) pruned: Vec<ResourceKey>,
}

impl OwnershipClaim {
    /// Reads the claim from the options of a set.
    pub(crate) fn read(path: &str, options: &v1::WriteOptions, faults: &mut Faults) -> Self {
        let prune = v1::Prune::try_from(options.prune).unwrap_or_else(|_| {
            faults.add(format!("{path}.prune"), "is not known: owned or everything");
            v1::Prune::Unspecified
        });
        if prune == v1::Prune::Owned && options.owner.is_empty() {
            faults.add(
                format!("{path}.owner"),
                "is required: prune deletes what this owner has outside the set",
            );
        }
        Self { owner: options.owner.clone(), take_over: options.take_over, prune }
    }

    /// Returns the owner of changes that name none.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// True if the set replaces everything. As in a rollback, its guards then cut its rules instead of
    /// rejecting them; otherwise a backup could not be restored.
    pub(crate) fn is_everything(&self) -> bool {
        self.prune == v1::Prune::Everything
    }

    /// Resolves a set on a snapshot. Errors with the subjects that it may not touch.
    pub(crate) fn resolve(&self, set: &ChangeSet, table: &Snapshot) -> Result<ResolvedSet, Vec<ResourceKey>> {
        let mut forbidden = Vec::new();
        let mut outcome = Vec::with_capacity(set.0.len());
        for change in &set.0 {
            match self.of_change(change, table) {
                Some(result) => outcome.push(result),
                None => forbidden.push(change.subject.clone()),
            }
        }
        let named: HashSet<&ResourceKey> = set.0.iter().map(|change| &change.subject).collect();
        let mut pruned = Vec::new();
        for subject in self.candidates(table).filter(|subject| !named.contains(subject)) {
            match self.may_touch(table.owner_of(&subject), "") {
                true => pruned.push(subject),
                false => forbidden.push(subject),
            }
        }
        if forbidden.is_empty() { Ok(ResolvedSet { outcome, pruned }) } else { Err(forbidden) }
    }

    /// Returns the result of one change; `None` if the claim does not allow it.
    fn of_change(&self, change: &ResourceChange, table: &Snapshot) -> Option<rule_result::Change> {
        let there = table.revision_of(&change.subject).is_some();
        let owner = table.owner_of(&change.subject);
        match &change.put {
            None if !there => Some(rule_result::Change::Unchanged),
            None => self.may_touch(owner, "").then_some(rule_result::Change::Deleted),
            Some(_) if !there => Some(rule_result::Change::Created),
            Some(written) if written.is_stored(table) => Some(rule_result::Change::Unchanged),
            Some(written) if self.may_touch(owner, written.owner()) => Some(rule_result::Change::Updated),
            Some(written) => {
                let is_equivalent =
                    written.amounts_to_stored(table) && (!change.names_owner || written.owner() == owner);
                is_equivalent.then_some(rule_result::Change::Unchanged)
            }
        }
    }

    /// True if a change that names `declared` may touch a subject of `owner`.
    fn may_touch(&self, owner: &str, declared: &str) -> bool {
        let claimant = if self.owner.is_empty() { declared } else { &self.owner };
        owner.is_empty() || owner == claimant || self.take_over
    }

    /// Returns the subjects in the scope of the prune, including those in the set.
    fn candidates<'a>(&'a self, table: &'a Snapshot) -> Box<dyn Iterator<Item = ResourceKey> + 'a> {
        let rules =
            table.iter().map(|(pattern, stored)| (ResourceKey::Rule(pattern.clone()), &stored.wire.owner));
        let guards = table.guards().iter();
        let guards = guards.map(|stored| (ResourceKey::Guard(stored.pattern.clone()), &stored.wire.owner));
        let queues = table.queues();
        let queues = queues.map(|(name, stored)| (ResourceKey::Queue(name.clone()), &stored.wire.owner));
        let all = rules.chain(guards).chain(queues);
        match self.prune {
            v1::Prune::Unspecified => Box::new(std::iter::empty()),
            v1::Prune::Everything => Box::new(all.map(|(subject, _)| subject)),
            v1::Prune::Owned => {
                Box::new(all.filter(|(_, owner)| **owner == self.owner).map(|(subject, _)| subject))
            }
        }
    }
}

/// A set with its claim, resolved by the writer at commit time.
#[derive(Clone, Debug)]
pub(crate) struct DeferredSet {
    pub(crate) set: Arc<ChangeSet>,
    pub(crate) claim: OwnershipClaim,
    /// The snapshot of this replica, from which the writer derives the current one.
    pub(crate) table: Arc<Snapshot>,
    pub(crate) author: String,
    pub(crate) at: SystemTime,
}

impl DeferredSet {
    /// Returns the edits for the writer, on the snapshot that the set was resolved on.
    pub(crate) fn edits_over(&self, table: &Snapshot, resolved: &ResolvedSet) -> Vec<ProposedEdit> {
        let mut edits = self.set.edits(&resolved.outcome, table, &self.author, self.at);
        let gone = |subject: &ResourceKey| ProposedEdit { key: subject.key(), value: None, expected: None };
        edits.extend(resolved.pruned.iter().map(gone));
        edits
    }
}

impl EditPlanner for DeferredSet {
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
        let now = self.table.at(entries);
        match self.claim.resolve(&self.set, &now) {
            Ok(resolved) => Ok(self.edits_over(&now, &resolved)),
            Err(forbidden) => Err(forbidden.iter().map(ResourceKey::key).collect()),
        }
    }
}

impl Written {
    fn owner(&self) -> &str {
        match self {
            Self::Rule(rule) => &rule.wire.owner,
            Self::Guard(guard) => &guard.wire.owner,
            Self::Queue(queue) => &queue.wire.owner,
        }
    }

    /// True if the stored value is identical.
    fn is_stored(&self, table: &Snapshot) -> bool {
        match self {
            Self::Rule(rule) => rule.unchanged(table).is_some(),
            Self::Guard(guard) => guard.unchanged(table).is_some(),
            Self::Queue(queue) => queue.unchanged(table).is_some(),
        }
    }

    /// True if the stored value has the same meaning, without owner and written-out defaults.
    fn amounts_to_stored(&self, table: &Snapshot) -> bool {
        match self {
            Self::Rule(written) => {
                let stored = table.stored(written.rule.pattern()).and_then(|stored| stored.rule.as_ref());
                stored.is_some_and(|stored| stored.policy() == written.rule.policy())
            }
            Self::Guard(written) => {
                let stored = table.guards().stored(written.guard.pattern());
                let stored = stored.and_then(|stored| stored.guard.as_ref());
                stored.is_some_and(|stored| stored.ceiling() == written.guard.ceiling())
            }
            Self::Queue(written) => {
                let stored = table.queue(written.queue.name()).and_then(|stored| stored.queue.as_ref());
                stored.is_some_and(|stored| stored.settings() == written.queue.settings())
            }
        }
    }
}
