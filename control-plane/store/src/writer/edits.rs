//! Edits that can only be chosen when they are written, because what they should be depends on what is there then.
//!
//! A set that removes all that it does not name, or that must not touch what others own, can not be made from what
//! its author last read: an entry may come in between, and asking again until nobody writes could take for ever
//! where somebody always does. So the proposal brings a judge along, whom the writer asks while it plans. What the
//! judge says holds at the revision of the proposal's own change, as every expected revision does.

use std::collections::BTreeMap;
use std::fmt;

use crate::writer::ProposedEdit;
use crate::{Entry, StoreContents};

/// Chooses the edits of a proposal.
pub trait EditPlanner: fmt::Debug + Send + Sync {
    /// The edits, by what is there; a key at most once.
    ///
    /// It may be asked more than once, and also about entries that turn out not to be the newest: then nothing of
    /// what it answered comes to be. So it decides by the entries alone.
    ///
    /// # Errors
    /// The keys that the proposal must not touch; then nothing of it is written.
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>>;
}

/// The entries at the moment, with the changes that are written before the judged one.
#[derive(Clone, Copy, Debug)]
pub struct EntriesView<'a> {
    state: &'a StoreContents,
    edits: &'a BTreeMap<String, Option<Entry>>,
    head: u64,
}

impl<'a> EntriesView<'a> {
    /// The entries of `state` with `edits` applied, at revision `head`.
    pub fn new(state: &'a StoreContents, edits: &'a BTreeMap<String, Option<Entry>>, head: u64) -> Self {
        Self { state, edits, head }
    }

    /// The identity of the store.
    #[must_use]
    pub fn epoch(&self) -> &'a str {
        &self.state.epoch
    }

    /// The revision before that of the judged change.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// All entries, in the order of their keys but for those that were changed last.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let Self { state, edits, .. } = *self;
        let settled = state.entries.iter().filter(|(key, _)| !edits.contains_key(*key));
        let newest = edits.iter().filter_map(|(key, entry)| Some((key, entry.as_ref()?)));
        settled.chain(newest).map(|(key, entry)| (key.as_str(), entry))
    }
}
