//! A table as edits would make it, for writes that are judged before they are made, and as it was, for those that are
//! asked for again.

use damper_core::{Pattern, Policy, RouteKey};
use rpds::RedBlackTreeMapSync;

use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use damper_store::Entry;
use damper_store::writer::ProposedEdit;

impl Snapshot {
    /// This table with the edits; its revision stays, since nothing is written.
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

    /// This table at an earlier revision, with what its entries were then where they were others.
    pub(crate) fn rewound(
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

    /// What is in force on a route: the winner's policy as the guards leave it; none where nothing is, or where
    /// something can not be read.
    pub(crate) fn policy_in_force(&self, route: &RouteKey) -> Option<Policy> {
        let mut policy = self.winner(route)?.policy().clone();
        for stored in self.guards.of_route(route) {
            policy = stored.guard.as_ref()?.ceiling().tighten(&policy).0;
        }
        Some(policy)
    }

    /// What is in force on the routes of a pattern that nothing narrower is for: the policy of its rule, or of the
    /// next wider one, as the guards leave it that are for all of these routes.
    pub(crate) fn policy_for(&self, pattern: &Pattern) -> Option<Policy> {
        let (_, stored) = self.stored_of(pattern.covering()).next()?;
        let mut policy = stored.rule.as_ref()?.policy().clone();
        for guard in pattern.covering().filter_map(|wider| self.guards.stored(&wider)) {
            policy = guard.guard.as_ref()?.ceiling().tighten(&policy).0;
        }
        Some(policy)
    }
}
