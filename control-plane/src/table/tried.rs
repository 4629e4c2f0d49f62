//! A table as edits would make it, for writes that are judged before they are made.

use damper_core::{Policy, RouteKey};

use super::{Subject, TableView};
use crate::writer::ProposedEdit;

impl TableView {
    /// This table with the edits; its revision stays, since nothing is written.
    pub(crate) fn tried(&self, edits: &[ProposedEdit]) -> Self {
        let mut tried = self.clone();
        for edit in edits {
            let Some(subject) = Subject::of_key(&edit.key) else { continue };
            match &edit.value {
                Some(value) => tried.set(&subject, value, self.revision),
                None => tried.remove(&subject),
            }
        }
        tried
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
}
