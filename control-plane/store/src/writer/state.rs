//! State of the writer, and the planning of proposals.
//!
//! Planning is pure: it reads the known entries through the edits of earlier proposals of the batch, and
//! yields an answer for each proposal and a change for each with an effect. The answers are valid only if the
//! store's head is still the known one, which the caller confirms by a commit or a read.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::writer::edits::EntriesView;
use crate::writer::request_ids::RequestIdLog;
use crate::writer::{Committed, EntryLimit, Proposal, ProposeError, ProposedEdit};
use crate::{Change, Edit, Entry, StoreContents};

/// Entries at the head, and recent requests.
#[derive(Debug)]
pub(crate) struct WriterState {
    state: StoreContents,
    pub(crate) requests: RequestIdLog,
    limits: Arc<[EntryLimit]>,
    /// Entries under each limit.
    counts: Vec<Holding>,
}

/// Entries under a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    entries: usize,
    bytes: usize,
}

/// Plan of a batch of proposals.
#[derive(Debug, Default)]
pub(crate) struct BatchPlan {
    pub(crate) changes: Vec<Change>,
    /// One per proposal.
    pub(crate) answers: Vec<Result<Committed, ProposeError>>,
}

/// Batch being planned: the known entries with its edits so far.
struct ChangeDraft<'a> {
    known: &'a WriterState,
    plan: BatchPlan,
    edits: BTreeMap<String, Option<Entry>>,
    counts: Vec<Holding>,
    /// Proposals of this batch with an id, by place; ids belong to their principal.
    requests: HashMap<(&'a str, &'a str), (usize, u64)>,
}

impl WriterState {
    pub(crate) fn new(state: StoreContents, requests: RequestIdLog, limits: Arc<[EntryLimit]>) -> Self {
        let count = |limit: &EntryLimit| {
            let held = state.entries.iter().filter(|(key, _)| key.starts_with(&limit.prefix));
            held.fold(Holding::default(), |sum, (key, entry)| sum.with(key, Some(&entry.value)))
        };
        let counts = limits.iter().map(count).collect();
        Self { state, requests, limits, counts }
    }

    pub(crate) fn head(&self) -> u64 {
        self.state.revision
    }

    /// Applies the next change of the store; false if it is not the next one.
    #[must_use]
    pub(crate) fn follow(&mut self, change: &Change) -> bool {
        if change.revision != self.head() + 1 {
            return false;
        }
        for edit in &change.edits {
            let before = self.state.entries.get(&edit.key).map(|entry| &entry.value);
            adjust(&self.limits, &mut self.counts, &edit.key, before, edit.value.as_ref());
        }
        self.state.apply(change);
        self.requests.record(change);
        true
    }

    /// Plans the proposals, each on top of the earlier ones.
    pub(crate) fn plan<'a>(&'a self, proposals: &[&'a Proposal]) -> BatchPlan {
        let mut draft = ChangeDraft {
            known: self,
            plan: BatchPlan::default(),
            edits: BTreeMap::new(),
            counts: self.counts.clone(),
            requests: HashMap::new(),
        };
        for (place, proposal) in proposals.iter().enumerate() {
            let answer = match draft.stored_answer(proposal) {
                Some(answer) => answer,
                None => draft.add(proposal),
            };
            if !proposal.request_id.is_empty() && answer.is_ok() {
                let id = (proposal.principal.as_str(), proposal.request_id.as_str());
                draft.requests.entry(id).or_insert((place, proposal.request_digest));
            }
            draft.plan.answers.push(answer);
        }
        draft.plan
    }
}

impl<'a> ChangeDraft<'a> {
    fn stored_answer(&self, proposal: &Proposal) -> Option<Result<Committed, ProposeError>> {
        if proposal.request_id.is_empty() {
            return None;
        }
        let id = (proposal.principal.as_str(), proposal.request_id.as_str());
        let Some(&(place, digest)) = self.requests.get(&id) else {
            return self.known.requests.stored_answer(proposal);
        };
        if digest != proposal.request_digest {
            let request_id = proposal.request_id.clone();
            return Some(Err(ProposeError::RequestIdReused { request_id }));
        }
        let first = self.plan.answers[place].clone();
        Some(first.map(|committed| Committed { repeated: true, ..committed }))
    }

    /// Plans a new proposal.
    fn add(&mut self, proposal: &Proposal) -> Result<Committed, ProposeError> {
        let head = self.known.head() + self.plan.changes.len() as u64;
        if proposal.expected_head.is_some_and(|expected| expected != head) {
            return Err(ProposeError::Moved { head });
        }
        let edits = self.edits_of(proposal, head)?;
        let (effective, counts) = self.examine(&edits)?;
        let unchanged = effective.is_empty();
        let revision = if unchanged { head } else { head + 1 };
        for edit in &effective {
            let entry = edit.value.clone().map(|value| Entry { revision, value });
            self.edits.insert(edit.key.clone(), entry);
        }
        self.counts = counts;
        if !unchanged {
            self.plan.changes.push(change(proposal, revision, effective));
        }
        let keys =
            edits.iter().map(|edit| (edit.key.clone(), self.entry(&edit.key).map(|entry| entry.revision)));
        Ok(Committed { revision, unchanged, repeated: false, keys: keys.collect() })
    }

    fn edits_of<'p>(
        &self,
        proposal: &'p Proposal,
        head: u64,
    ) -> Result<Cow<'p, [ProposedEdit]>, ProposeError> {
        let Some(planner) = &proposal.planner else { return Ok(Cow::Borrowed(&proposal.edits)) };
        let entries = EntriesView::new(&self.known.state, &self.edits, head);
        let refused = |keys: Vec<String>| {
            let entries = keys.into_iter().map(|key| (key.clone(), self.entry(&key).cloned()));
            ProposeError::PlannerRejected { entries: entries.collect() }
        };
        planner.edits(&entries).map(Cow::Owned).map_err(refused)
    }

    /// Returns the edits with an effect, and the counts after them.
    fn examine(&self, edits: &[ProposedEdit]) -> Result<(Vec<Edit>, Vec<Holding>), ProposeError> {
        if let Some(key) = repeated_key(edits) {
            return Err(ProposeError::Invalid { reason: format!("the key {key:?} twice in one proposal") });
        }
        let mut counts = self.counts.clone();
        let mut effective = Vec::new();
        for ProposedEdit { key, value, expected } in edits {
            let current = self.entry(key);
            let revision = current.map_or(0, |entry| entry.revision);
            if expected.is_some_and(|expected| expected != revision) {
                return Err(ProposeError::Conflict { key: key.clone(), current: current.cloned() });
            }
            if current.map(|entry| &entry.value) != value.as_ref() {
                let before = current.map(|entry| &entry.value);
                adjust(&self.known.limits, &mut counts, key, before, value.as_ref());
                let before = current.cloned();
                effective.push(Edit { key: key.clone(), value: value.clone(), before });
            }
        }
        self.within_limits(&counts)?;
        Ok((effective, counts))
    }

    /// Errors if a count grows beyond its limit. Entries above it may still be changed and removed.
    fn within_limits(&self, counts: &[Holding]) -> Result<(), ProposeError> {
        for ((limit, before), after) in self.known.limits.iter().zip(&self.counts).zip(counts) {
            let prefix = limit.prefix.clone();
            if after.entries > limit.max_entries && after.entries > before.entries {
                let (entries, limit) = (after.entries, limit.max_entries);
                return Err(ProposeError::TooManyEntries { prefix, entries, limit });
            }
            if after.bytes > limit.max_bytes && after.bytes > before.bytes {
                let (bytes, limit) = (after.bytes, limit.max_bytes);
                return Err(ProposeError::TooManyBytes { prefix, bytes, limit });
            }
        }
        Ok(())
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        match self.edits.get(key) {
            Some(entry) => entry.as_ref(),
            None => self.known.state.entries.get(key),
        }
    }
}

fn change(proposal: &Proposal, revision: u64, edits: Vec<Edit>) -> Change {
    Change {
        revision,
        commit: 0,
        at: proposal.at,
        author: proposal.author.clone(),
        reason: proposal.reason.clone(),
        peer: proposal.peer.clone(),
        principal: proposal.principal.clone(),
        request_id: proposal.request_id.clone(),
        request_digest: proposal.request_digest,
        edits,
    }
}

fn adjust(
    limits: &[EntryLimit],
    counts: &mut [Holding],
    key: &str,
    before: Option<&Bytes>,
    after: Option<&Bytes>,
) {
    for (limit, count) in limits.iter().zip(counts) {
        if key.starts_with(&limit.prefix) {
            *count = count.with(key, after).without(key, before);
        }
    }
}

impl Holding {
    fn with(self, key: &str, value: Option<&Bytes>) -> Self {
        let Some(value) = value else { return self };
        Self { entries: self.entries + 1, bytes: self.bytes + key.len() + value.len() }
    }

    fn without(self, key: &str, value: Option<&Bytes>) -> Self {
        let Some(value) = value else { return self };
        Self { entries: self.entries - 1, bytes: self.bytes - key.len() - value.len() }
    }
}

impl Proposal {
    /// Returns the size that this proposal adds to a transaction.
    pub(crate) fn weight(&self) -> (usize, usize) {
        let overhead = self.author.len() + self.reason.len() + self.peer.len() + self.request_id.len();
        (self.edits.len() + 1, overhead + 2 * self.bytes())
    }
}

/// Returns the first duplicate key.
fn repeated_key(edits: &[ProposedEdit]) -> Option<&str> {
    let mut keys = HashSet::new();
    edits.iter().map(|edit| edit.key.as_str()).find(|key| !keys.insert(*key))
}
