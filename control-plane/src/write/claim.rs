//! In whose name a set is applied, and what that allows: what belongs to somebody else is neither changed nor
//! removed unless it is taken over, and what is not in the set is removed as far as the prune goes.
//!
//! The same decision is made twice: from this replica's table, to try a set out and to find its faults, and by the
//! writer from the entries that the set is written over (see `writer::Judge`). Between the two somebody may have
//! written; only the second one counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1::{self, rule_result};

use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::change_set::{ChangeSet, ResourceChange, Written};
use damper_store::writer::ProposedEdit;
use damper_store::writer::{EditPlanner, EntriesView};

/// In whose name a set is applied.
#[derive(Clone, Debug)]
pub(crate) struct OwnershipClaim {
    /// Empty = each change is made in the name of the owner that it says itself.
    owner: String,
    take_over: bool,
    prune: v1::Prune,
}

/// What becomes of a set over a table.
#[derive(Debug)]
pub(crate) struct ResolvedSet {
    /// Of each change, in its order.
    pub(crate) outcome: Vec<rule_result::Change>,
    /// What is not in the set and goes with it, in the order of the keys, rules first.
    pub(crate) pruned: Vec<ResourceKey>,
}

impl OwnershipClaim {
    /// Reads what the header of a set says.
    pub(crate) fn read(path: &str, options: &v1::WriteOptions, faults: &mut Faults) -> Self {
        let prune = v1::Prune::try_from(options.prune).unwrap_or_else(|_| {
            faults.add(format!("{path}.prune"), "is not known: owned or everything");
            v1::Prune::Unspecified
        });
        if prune == v1::Prune::Owned && options.owner.is_empty() {
            faults.add(
                format!("{path}.owner"),
                "must be given: what it owns and the set does not name is removed",
            );
        }
        Self { owner: options.owner.clone(), take_over: options.take_over, prune }
    }

    /// The owner of what names none.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Whether the set is all there is. Then its rules were in force beside its guards, as in a rollback: what a
    /// guard is against is cut, not refused, or a backup could not be read back.
    pub(crate) fn is_everything(&self) -> bool {
        self.prune == v1::Prune::Everything
    }

    /// What becomes of a set, or all that it must not touch.
    pub(crate) fn settle(&self, set: &ChangeSet, table: &Snapshot) -> Result<ResolvedSet, Vec<ResourceKey>> {
        let mut refused = Vec::new();
        let mut outcome = Vec::with_capacity(set.0.len());
        for change in &set.0 {
            match self.of_change(change, table) {
                Some(result) => outcome.push(result),
                None => refused.push(change.subject.clone()),
            }
        }
        let named: HashSet<&ResourceKey> = set.0.iter().map(|change| &change.subject).collect();
        let mut pruned = Vec::new();
        for subject in self.candidates(table).filter(|subject| !named.contains(subject)) {
            match self.may_touch(table.owner_of(&subject), "") {
                true => pruned.push(subject),
                false => refused.push(subject),
            }
        }
        if refused.is_empty() { Ok(ResolvedSet { outcome, pruned }) } else { Err(refused) }
    }

    /// What becomes of one change; none where it must not be made.
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
                let says_as_much =
                    written.amounts_to_stored(table) && (!change.names_owner || written.owner() == owner);
                says_as_much.then_some(rule_result::Change::Unchanged)
            }
        }
    }

    /// Whether what belongs to an owner may be changed by a change that says another.
    fn may_touch(&self, owner: &str, said: &str) -> bool {
        let claimant = if self.owner.is_empty() { said } else { &self.owner };
        owner.is_empty() || owner == claimant || self.take_over
    }

    /// What the prune is about, were it not in the set.
    fn candidates<'a>(&'a self, table: &'a Snapshot) -> Box<dyn Iterator<Item = ResourceKey> + 'a> {
        let rules =
            table.iter().map(|(pattern, stored)| (ResourceKey::Rule(pattern.clone()), &stored.wire.owner));
        let guards = table.guards().iter();
        let guards = guards.map(|stored| (ResourceKey::Guard(stored.pattern.clone()), &stored.wire.owner));
        let all = rules.chain(guards);
        match self.prune {
            v1::Prune::Unspecified => Box::new(std::iter::empty()),
            v1::Prune::Everything => Box::new(all.map(|(subject, _)| subject)),
            v1::Prune::Owned => {
                Box::new(all.filter(|(_, owner)| **owner == self.owner).map(|(subject, _)| subject))
            }
        }
    }
}

/// A set with its claim, for the writer.
#[derive(Clone, Debug)]
pub(crate) struct DeferredSet {
    pub(crate) set: Arc<ChangeSet>,
    pub(crate) claim: OwnershipClaim,
    /// This replica's table, from which the newest one is made.
    pub(crate) table: Arc<Snapshot>,
    pub(crate) author: String,
    pub(crate) at: SystemTime,
}

impl DeferredSet {
    /// What the writer is asked for, over a table that the set was settled with.
    pub(crate) fn edits_over(&self, table: &Snapshot, settled: &ResolvedSet) -> Vec<ProposedEdit> {
        let mut edits = self.set.edits(&settled.outcome, table, &self.author, self.at);
        let gone = |subject: &ResourceKey| ProposedEdit { key: subject.key(), value: None, expected: None };
        edits.extend(settled.pruned.iter().map(gone));
        edits
    }
}

impl EditPlanner for DeferredSet {
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
        let now = self.table.at(entries);
        match self.claim.settle(&self.set, &now) {
            Ok(settled) => Ok(self.edits_over(&now, &settled)),
            Err(refused) => Err(refused.iter().map(ResourceKey::key).collect()),
        }
    }
}

impl Written {
    fn owner(&self) -> &str {
        match self {
            Self::Rule(rule) => &rule.wire.owner,
            Self::Guard(guard) => &guard.wire.owner,
        }
    }

    /// Whether it is stored just so.
    fn is_stored(&self, table: &Snapshot) -> bool {
        match self {
            Self::Rule(rule) => rule.unchanged(table).is_some(),
            Self::Guard(guard) => guard.unchanged(table).is_some(),
        }
    }

    /// Whether what is stored means the same, whoever owns it and whether it writes a default out or not.
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
        }
    }
}
