//! A job as the store keeps it.
//!
//! Record and body are kept apart: a delivery changes the record, and must not copy the body. A settlement is
//! compared with the delivery number and the token of the lease, and with the last [`Booking`]: a delivery
//! counts once, though a worker may settle it late or more than once.

use std::sync::Arc;

use damper_core::job::{Job, Wall};
use damper_core::{Code, RouteKey};
use sha2::{Digest as _, Sha256};

/// 128 bits, ordered by time of submission in its first 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; 16]);

/// A process that holds leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u64);

/// The jobs of one queue with one route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Name of the queue.
    pub queue: String,
    /// Route of its jobs.
    pub route: RouteKey,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Due at `Record::at`.
    Waiting,
    /// Behind another job with the same order key.
    Behind,
    /// Delivered to a worker of this server.
    Leased {
        /// The server that keeps the lease.
        server: ServerId,
        /// 64 random bits of this lease.
        token: u64,
    },
    /// A worker finished it.
    Done,
    /// Given up and kept.
    Dead,
    /// Cancelled.
    Cancelled,
    /// Its time ran out.
    Expired,
}

/// A state without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// See [`State::Waiting`].
    Waiting,
    /// See [`State::Behind`].
    Behind,
    /// See [`State::Leased`].
    Leased,
    /// See [`State::Done`].
    Done,
    /// See [`State::Dead`].
    Dead,
    /// See [`State::Cancelled`].
    Cancelled,
    /// See [`State::Expired`].
    Expired,
}

/// A job without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Id of the job.
    pub id: JobId,
    /// Queue and route.
    pub lane: Arc<Lane>,
    /// State.
    pub state: State,
    /// Waiting or behind: when it is due. Leased: when it was leased. Ended: when it ended.
    pub at: Wall,
    /// Time of the submission.
    pub submitted: Wall,
    /// Counters.
    pub job: Job,
    /// Result of the last delivery; `None` before the first one ended, while leased, and after a replay.
    pub booked: Option<Booking>,
    /// Key of the submitter, unique within the queue, caller service, callee service and method: lanes that
    /// differ only in the caller's cluster share their keys and order keys.
    pub key: String,
    /// Hash of what two submissions with the same key must share. Compared if `body_key_id` is the same.
    pub digest: [u8; 32],
    /// Jobs with the same order key are delivered one after the other, by `job.began` and id.
    pub order_key: Option<String>,
    /// `damper-call` of the original call; empty: none.
    pub call_id: String,
    /// Name of the key that the body is encrypted under; empty: not encrypted.
    pub body_key_id: String,
    /// Bytes of body and metadata, 0 once they are removed. Set by the store.
    pub body_bytes: u32,
    /// Why it ended; empty: it has not.
    pub ended: String,
    /// The last [`MAX_FAILURES`], oldest first; at most one per delivery.
    pub failures: Vec<FailedDelivery>,
}

/// Failed deliveries kept per job.
pub const MAX_FAILURES: usize = 8;

/// The settlement of the delivery with the number `Record::job.deliveries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Token of its lease.
    pub token: u64,
    /// Counters before a server ended the lease, as lost or released: a late settlement of the worker replaces
    /// that. `None`: the worker settled it, which is final.
    pub before: Option<Job>,
}

/// A failed delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDelivery {
    /// When it ended.
    pub at: Wall,
    /// Number of the delivery.
    pub delivery: u32,
    /// Status code.
    pub code: Code,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// `service/instance`
    pub worker: String,
    /// Worker's description, at most 200 bytes.
    pub detail: String,
}

/// Body and metadata of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Content as submitted.
    pub content: Vec<u8>,
    /// Metadata as submitted, sorted by name.
    pub metadata: Vec<(String, String)>,
}

impl Lane {
    /// Hash of what keys and order keys are unique in: queue, caller service, callee service and method. Two
    /// names never give the same text, since each is preceded by its length.
    pub(super) fn scope(&self) -> u128 {
        let mut hash = Sha256::new();
        let route = &self.route;
        for name in [&*self.queue, route.caller_service(), route.callee_service(), route.callee_method()] {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
        }
        let digest: [u8; 32] = hash.finalize().into();
        u128::from_be_bytes(*digest.first_chunk().expect("a SHA-256 has 32 bytes"))
    }
}

impl State {
    /// Returns the state without its data.
    #[must_use]
    pub fn kind(self) -> StateKind {
        match self {
            Self::Waiting => StateKind::Waiting,
            Self::Behind => StateKind::Behind,
            Self::Leased { .. } => StateKind::Leased,
            Self::Done => StateKind::Done,
            Self::Dead => StateKind::Dead,
            Self::Cancelled => StateKind::Cancelled,
            Self::Expired => StateKind::Expired,
        }
    }
}

impl StateKind {
    /// Returns true for a job that will be delivered or is.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Waiting | Self::Behind | Self::Leased)
    }

    /// Returns true if jobs in this state have a body.
    #[must_use]
    pub fn has_body(self) -> bool {
        self.is_live() || self == Self::Dead
    }
}

impl Record {
    /// Bytes that a record and its places in the indexes take besides its texts and its body.
    const OVERHEAD: u64 = 1_000;
    /// The same of a failed delivery.
    const FAILURE: u64 = 32;

    /// Returns the bytes that the job takes on disk, its body included: an estimate that every store shares,
    /// so that a quota means the same everywhere.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let order_key = self.order_key.as_deref().unwrap_or_default();
        let texts = [&self.key, order_key, &self.call_id, &self.body_key_id, &self.ended];
        let texts: usize = texts.iter().map(|text| text.len()).sum();
        let failures = self.failures.iter().map(FailedDelivery::bytes).sum::<u64>();
        Self::OVERHEAD + u64::from(self.body_bytes) + texts as u64 + failures
    }

    /// Returns true if the job was never sent, here or before its submission. A kill of retries holds all
    /// others.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.job.sends_before == 0 && self.job.attempts == 0
    }
}

impl FailedDelivery {
    fn bytes(&self) -> u64 {
        Record::FAILURE + (self.worker.len() + self.detail.len()) as u64
    }
}

impl Body {
    /// Returns the bytes of content and metadata.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        let metadata: usize = self.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        u32::try_from(self.content.len() + metadata).unwrap_or(u32::MAX)
    }
}
