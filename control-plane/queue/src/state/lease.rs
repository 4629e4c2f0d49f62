//! Leases in memory: the deliveries in flight of this server, and when each ends by itself.
//!
//! A lease ends at its deadline, which is the limit of the delivery and 5 s; when its worker has been silent
//! for the queue's `lease`; or 10 s after its stream ended without a Bye. None of these times is written to
//! the store: what is written is the lease itself. The end of a lease moves with each message of its worker,
//! so the list of ends is only a list of times to look: an entry that comes too early is put back.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use damper_core::job::JobEnd;
use tokio::time::Instant;

use crate::id::LeaseId;
use crate::state::worker::WorkerNo;
use crate::store::{Body, JobId, Record};

/// Time beyond the limit of a delivery.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Time for a worker to return after its stream ended without a Bye.
pub(crate) const RETURN_WITHIN: Duration = Duration::from_secs(10);

/// Job and number of the delivery.
pub(crate) type LeaseKey = (JobId, u32);

/// A delivery in flight.
pub(crate) struct Lease {
    pub(crate) record: Record,
    pub(crate) token: u64,
    /// The stream; `None`: it has ended, and the worker may return.
    pub(crate) worker: Option<WorkerNo>,
    /// The delivery was sent: its handler may have begun.
    pub(crate) was_sent: bool,
    /// The worker has reported that the handler began.
    pub(crate) has_begun: bool,
    /// The worker has no other lease.
    pub(crate) is_alone: bool,
    /// A settlement is in flight to the store: the lease no longer ends by itself.
    pub(crate) is_settling: bool,
    /// Bytes of the body.
    pub(crate) bytes: u64,
    /// The body of a job that waits for a worker without other leases.
    pub(crate) unsent: Option<Body>,
    pub(crate) end: End,
    /// Its entry in the list of ends.
    listed: Instant,
}

/// When a lease ends by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Whatever the worker reports.
    pub(crate) deadline: Instant,
    /// Longest silence of the worker.
    pub(crate) silence: Duration,
    /// Without a worker.
    pub(crate) without_worker: Instant,
}

impl End {
    fn at(self, last_message: Option<Instant>) -> Instant {
        let silent = last_message.map_or(self.without_worker, |last_message| last_message + self.silence);
        self.deadline.min(silent)
    }
}

impl Lease {
    pub(crate) fn new(record: Record, token: u64, bytes: u64, end: End) -> Self {
        Self {
            record,
            token,
            worker: None,
            was_sent: false,
            has_begun: false,
            is_alone: false,
            is_settling: false,
            bytes,
            unsent: None,
            listed: end.deadline,
            end,
        }
    }

    pub(crate) fn key(&self) -> LeaseKey {
        (self.record.id, self.record.job.deliveries)
    }
}

/// A delivery that the server ends, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) key: LeaseKey,
    pub(crate) how: HowEnded,
}

/// How the server ends a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowEnded {
    /// The worker disappeared.
    Lost,
    /// The worker disappeared, and may have begun.
    Unknown,
    /// It has not begun: the job is due again after this time.
    Released(Duration),
    /// The job ended before it was sent.
    Over(JobEnd),
}

impl HowEnded {
    /// Returns how a delivery of an absent worker ends.
    pub(crate) fn of(lease: &Lease) -> Self {
        match (lease.was_sent, lease.has_begun) {
            (_, true) => Self::Lost,
            (true, false) => Self::Unknown,
            (false, false) => Self::Released(Duration::ZERO),
        }
    }
}

/// All leases.
#[derive(Default)]
pub(crate) struct Leases {
    by_key: HashMap<LeaseKey, Lease>,
    ends: BTreeSet<(Instant, LeaseKey)>,
}

impl Leases {
    /// Adds a lease. `last_message`: the last message of its worker, if it has one.
    pub(crate) fn insert(&mut self, mut lease: Lease, last_message: Option<Instant>) {
        let key = lease.key();
        lease.listed = lease.end.at(last_message);
        self.ends.insert((lease.listed, key));
        if let Some(old) = self.by_key.insert(key, lease) {
            self.ends.remove(&(old.listed, key));
            // Both may have had the same end.
            let listed = self.by_key[&key].listed;
            self.ends.insert((listed, key));
        }
    }

    pub(crate) fn get(&self, key: LeaseKey) -> Option<&Lease> {
        self.by_key.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: LeaseKey) -> Option<&mut Lease> {
        self.by_key.get_mut(&key)
    }

    /// Returns the lease with this id, token included.
    pub(crate) fn named(&mut self, id: LeaseId) -> Option<&mut Lease> {
        self.by_key.get_mut(&(id.job, id.delivery)).filter(|lease| lease.token == id.token)
    }

    pub(crate) fn remove(&mut self, key: LeaseKey) -> Option<Lease> {
        let lease = self.by_key.remove(&key)?;
        self.ends.remove(&(lease.listed, key));
        Some(lease)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.by_key.values()
    }

    /// Lists the end of a lease again, which may have become earlier.
    pub(crate) fn relist(&mut self, key: LeaseKey, last_message: Option<Instant>) {
        if let Some(lease) = self.by_key.get_mut(&key) {
            self.ends.remove(&(lease.listed, key));
            lease.listed = lease.end.at(last_message);
            self.ends.insert((lease.listed, key));
        }
    }

    /// Returns when to look for ended leases.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Returns the leases that have ended. Each is returned once.
    pub(crate) fn ended(
        &mut self,
        now: Instant,
        last_message: impl Fn(WorkerNo) -> Option<Instant>,
    ) -> Vec<LeaseKey> {
        let mut ended = Vec::new();
        while let Some((at, key)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.ends.remove(&(at, key));
            let Some(lease) = self.by_key.get_mut(&key).filter(|lease| !lease.is_settling) else { continue };
            let end = lease.end.at(lease.worker.and_then(&last_message));
            if end > now {
                lease.listed = end;
                self.ends.insert((end, key));
            } else {
                lease.is_settling = true;
                ended.push(key);
            }
        }
        ended
    }
}
