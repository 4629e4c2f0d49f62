//! Snapshots with edits applied, to check writes in advance, and at an earlier revision, for repeated
//! requests.

use damper_core::{Pattern, Policy, RouteKey};
use rpds::RedBlackTreeMapSync;

use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use damper_store::Entry;
use damper_store::writer::ProposedEdit;

impl Snapshot {
    /// Returns this snapshot with the edits. Its revision stays, since nothing is written.
    pub(crate) fn tried(&self, edits: &[ProposedEdit]) -> Self {
        let mut tried = self.clone();
        for edit in edits {
            let Some(subject) = ResourceKey::of_key(&edit.key) else { continue };
            match &edit.value {
                Some(value) => tried.set(&subject, value, self.revision, false),
                None => tried.remove(&subject),
            }
        }
        tried
    }

    /// Returns this snapshot at an earlier revision, with the entries that differed then.
    pub(crate) fn at_revision(
        &self,
        revision: u64,
        entries: impl IntoIterator<Item = (ResourceKey, Option<Entry>)>,
    ) -> Self {
        let mut then = self.clone();
        for (subject, entry) in entries {
            match entry {
                Some(entry) => then.set(&subject, &entry.value, entry.revision, false),
                None => then.remove(&subject),
            }
        }
        then.revision = revision;
        then.recent = RedBlackTreeMapSync::new_sync();
        then.recent_subjects = 0;
        then
    }

    /// Returns the policy in force on a route after guards; `None` without a rule, or if an entry cannot be
    /// read.
    pub(crate) fn policy_in_force(&self, route: &RouteKey) -> Option<Policy> {
        let mut policy = self.winner(route)?.policy().clone();
        for stored in self.guards.of_route(route) {
            policy = stored.guard.as_ref()?.ceiling().tighten(&policy).0;
        }
        Some(policy)
    }

    /// Returns the policy in force on the routes of a pattern that no more specific pattern covers: that of
    /// its rule, or of the next less specific one, after the guards that cover all of these routes.
    pub(crate) fn policy_for(&self, pattern: &Pattern) -> Option<Policy> {
        let (_, stored) = self.stored_of(pattern.covering()).next()?;
        let mut policy = stored.rule.as_ref()?.policy().clone();
        for guard in pattern.covering().filter_map(|covering| self.guards.stored(&covering)) {
            policy = guard.guard.as_ref()?.ceiling().tighten(&policy).0;
        }
        Some(policy)
    }
}
