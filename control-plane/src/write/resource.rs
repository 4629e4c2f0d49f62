//! Rules, guards and queues of write requests: all fields of the author, none that the server sets.

use std::time::SystemTime;

use damper_core::job::Queue;
use damper_core::{Guard, Rule};
use damper_net::limits::Limit;
use damper_proto::{convert, v1};
use prost::Message as _;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::stored::{StoredGuard, StoredQueue, StoredRule};

/// Largest encoded rule, guard or queue.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// A rule that may be stored, checked on its own.
#[derive(Debug)]
pub(crate) struct NewRule {
    pub(crate) rule: Rule,
    pub(crate) wire: v1::Rule,
}

/// A guard that may be stored, checked on its own.
#[derive(Debug)]
pub(crate) struct NewGuard {
    pub(crate) guard: Guard,
    pub(crate) wire: v1::Guard,
}

/// A queue that may be stored, checked on its own.
#[derive(Debug)]
pub(crate) struct NewQueue {
    pub(crate) queue: Queue,
    pub(crate) wire: v1::Queue,
}

impl NewRule {
    /// Reads a required rule.
    pub(crate) fn read(path: &str, rule: Option<v1::Rule>) -> Result<Self, ApiError> {
        let Some(wire) = rule else { return Err(ApiError::fault(path, "is required")) };
        let rule = convert::rule(&wire).map_err(|faults| ApiError::at(path, faults))?;
        check_size(path, "rule", wire.encoded_len())?;
        let wire = v1::Rule {
            key: Some(rule.pattern().into()),
            policy: wire.policy,
            owner: wire.owner,
            ..v1::Rule::default()
        };
        Ok(Self { rule, wire })
    }

    pub(crate) fn subject(&self) -> ResourceKey {
        ResourceKey::Rule(self.rule.pattern().clone())
    }

    /// Returns the stored rule if it is the same.
    pub(crate) fn unchanged<'a>(&self, table: &'a Snapshot) -> Option<&'a v1::Rule> {
        let stored = &table.stored(self.rule.pattern())?.wire;
        (stored.policy == self.wire.policy && stored.owner == self.wire.owner).then_some(stored)
    }

    /// Returns the value to store. An identical rule keeps its stored bytes, so that the writer sees no
    /// change.
    pub(crate) fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes {
        let new =
            || v1::Rule { updated_at: Some(at.into()), updated_by: author.to_owned(), ..self.wire.clone() };
        self.unchanged(table).map_or_else(|| StoredRule::value(&new()), StoredRule::value).into()
    }
}

impl NewGuard {
    /// Reads a required guard.
    pub(crate) fn read(path: &str, guard: Option<v1::Guard>) -> Result<Self, ApiError> {
        let Some(wire) = guard else { return Err(ApiError::fault(path, "is required")) };
        let guard = convert::guard(&wire).map_err(|faults| ApiError::at(path, faults))?;
        check_size(path, "guard", wire.encoded_len())?;
        let wire = v1::Guard {
            key: Some(guard.pattern().into()),
            ceiling: wire.ceiling,
            owner: wire.owner,
            ..v1::Guard::default()
        };
        Ok(Self { guard, wire })
    }

    pub(crate) fn subject(&self) -> ResourceKey {
        ResourceKey::Guard(self.guard.pattern().clone())
    }

    /// Returns the stored guard if it is the same.
    pub(crate) fn unchanged<'a>(&self, table: &'a Snapshot) -> Option<&'a v1::Guard> {
        let stored = &table.guards().stored(self.guard.pattern())?.wire;
        (stored.ceiling == self.wire.ceiling && stored.owner == self.wire.owner).then_some(stored)
    }

    /// Returns the value to store. An identical guard keeps its stored bytes.
    pub(crate) fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes {
        let new =
            || v1::Guard { updated_at: Some(at.into()), updated_by: author.to_owned(), ..self.wire.clone() };
        self.unchanged(table).map_or_else(|| StoredGuard::value(&new()), StoredGuard::value).into()
    }

    /// Returns the guard as a snapshot would contain it.
    pub(crate) fn stored(&self) -> StoredGuard {
        StoredGuard::tried(self.guard.clone(), self.wire.clone())
    }
}

impl NewQueue {
    /// Reads a required queue.
    pub(crate) fn read(path: &str, queue: Option<v1::Queue>) -> Result<Self, ApiError> {
        let Some(wire) = queue else { return Err(ApiError::fault(path, "is required")) };
        let queue = convert::queue(&wire).map_err(|faults| ApiError::at(path, faults))?;
        check_size(path, "queue", wire.encoded_len())?;
        Ok(Self { queue, wire: StoredQueue::authored(wire) })
    }

    pub(crate) fn subject(&self) -> ResourceKey {
        ResourceKey::Queue(self.queue.name().to_owned())
    }

    /// Returns the stored queue if it is the same.
    pub(crate) fn unchanged<'a>(&self, table: &'a Snapshot) -> Option<&'a v1::Queue> {
        let stored = &table.queue(self.queue.name())?.wire;
        (StoredQueue::authored(stored.clone()) == self.wire).then_some(stored)
    }

    /// Returns the value to store. An identical queue keeps its stored bytes.
    pub(crate) fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes {
        let new =
            || v1::Queue { updated_at: Some(at.into()), updated_by: author.to_owned(), ..self.wire.clone() };
        self.unchanged(table).map_or_else(|| StoredQueue::value(&new()), StoredQueue::value).into()
    }
}

fn check_size(path: &str, what: &str, size: usize) -> Result<(), ApiError> {
    if size <= MAX_ENTRY_BYTES {
        return Ok(());
    }
    let limit = format!("at most {MAX_ENTRY_BYTES} are allowed");
    Err(ApiError::too_large(Limit::EntryBytes, format!("{path}: the {what} has {size} bytes, {limit}")))
}
