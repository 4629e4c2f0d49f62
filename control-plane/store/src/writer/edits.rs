//! Edits computed at commit time from the current entries, for prune and ownership.
//!
//! A set that removes all unnamed entries, or must not change entries of other owners, cannot be computed
//! from what its author last read: another write may intervene, and retries might never end on a busy store.
//! So the proposal carries a planner, which the writer calls while it plans. Its edits apply at the revision
//! of the proposal's own change, as expected revisions do.

use std::collections::BTreeMap;
use std::fmt;

use crate::writer::ProposedEdit;
use crate::{Entry, StoreContents};

/// Planner of a proposal's edits.
pub trait EditPlanner: fmt::Debug + Send + Sync {
    /// Returns the edits for the given entries; each key at most once.
    ///
    /// May be called several times, and with entries that turn out to be outdated; the result is then
    /// discarded. It must depend on the entries alone.
    ///
    /// # Errors
    ///
    /// The keys that the proposal must not change; nothing of it is written.
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>>;
}

/// Current entries, with the changes that are written before the planned one.
#[derive(Clone, Copy, Debug)]
pub struct EntriesView<'a> {
    state: &'a StoreContents,
    edits: &'a BTreeMap<String, Option<Entry>>,
    head: u64,
}

impl<'a> EntriesView<'a> {
    /// Creates a view of `state` with `edits` applied, at revision `head`.
    pub fn new(state: &'a StoreContents, edits: &'a BTreeMap<String, Option<Entry>>, head: u64) -> Self {
        Self { state, edits, head }
    }

    /// Returns the identity of the store.
    #[must_use]
    pub fn epoch(&self) -> &'a str {
        &self.state.epoch
    }

    /// Returns the revision before the planned change.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Iterates over all entries sorted by key; recently changed ones follow at the end.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let Self { state, edits, .. } = *self;
        let settled = state.entries.iter().filter(|(key, _)| !edits.contains_key(*key));
        let newest = edits.iter().filter_map(|(key, entry)| Some((key, entry.as_ref()?)));
        settled.chain(newest).map(|(key, entry)| (key.as_str(), entry))
    }
}
