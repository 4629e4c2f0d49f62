//! A connected worker: its credits, its leases, and the lanes that it does not get.
//!
//! A credit is a free slot for one delivery from one queue. A worker that released a job of a lane does not
//! get that lane for a while, twice as long each time; others do. A job that was lost twice in a row is
//! delivered alone, so that only the worker that runs it can be lost with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use damper_core::RouteKey;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::state::lease::LeaseKey;
use crate::store::Lane;
use crate::worker::{MAX_BYTES_IN_FLIGHT, MAX_DELIVERIES, ToWorker, WorkerIdentity};

const SHORTEST_BLOCK: Duration = Duration::from_secs(1);
const LONGEST_BLOCK: Duration = Duration::from_secs(60);

/// Number of a stream, unique in this process.
pub(crate) type WorkerNo = u64;

/// One stream.
pub(crate) struct Worker {
    pub(crate) identity: WorkerIdentity,
    pub(crate) out: mpsc::Sender<ToWorker>,
    pub(crate) leases: HashSet<LeaseKey>,
    /// Deliveries that a lease in flight to the store reserves.
    pub(crate) reserved: usize,
    /// Bytes of leased and reserved deliveries.
    pub(crate) bytes: u64,
    /// Last message.
    pub(crate) last_message: Instant,
    /// It gets no further deliveries: after its Bye, or because it does not read.
    pub(crate) is_leaving: bool,
    /// It lost a lease by its silence, and has sent nothing since.
    pub(crate) is_silent: bool,
    /// It has sent a Bye.
    pub(crate) has_sent_bye: bool,
    /// The job that it gets, or has, alone.
    pub(crate) alone: Option<LeaseKey>,
    credits: BTreeMap<String, u32>,
    blocks: HashMap<(String, RouteKey), Block>,
}

/// A lane that a stream does not get for a while.
struct Block {
    until: Instant,
    length: Duration,
}

/// Too many credits: a fault of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyCredits;

impl Worker {
    pub(crate) fn new(identity: WorkerIdentity, out: mpsc::Sender<ToWorker>, now: Instant) -> Self {
        Self {
            identity,
            out,
            leases: HashSet::new(),
            reserved: 0,
            bytes: 0,
            last_message: now,
            is_leaving: false,
            is_silent: false,
            has_sent_bye: false,
            alone: None,
            credits: BTreeMap::new(),
            blocks: HashMap::new(),
        }
    }

    /// Adds free slots for a queue.
    pub(crate) fn give(&mut self, queue: &str, more: u32) -> Result<(), TooManyCredits> {
        let all: u64 = self.credits.values().map(|credits| u64::from(*credits)).sum();
        if all + u64::from(more) > MAX_DELIVERIES as u64 {
            return Err(TooManyCredits);
        }
        *self.credits.entry(queue.to_owned()).or_default() += more;
        Ok(())
    }

    /// Returns the free slots for a queue that can be used now.
    pub(crate) fn credits(&self, queue: &str) -> u32 {
        let busy = self.leases.len() + self.reserved;
        if !self.is_available() || self.bytes >= MAX_BYTES_IN_FLIGHT {
            return 0;
        }
        let free = u32::try_from(MAX_DELIVERIES.saturating_sub(busy)).unwrap_or(u32::MAX);
        self.credits.get(queue).copied().unwrap_or_default().min(free)
    }

    /// Returns true if it may get a delivery.
    pub(crate) fn is_available(&self) -> bool {
        !self.is_leaving && !self.is_silent && self.alone.is_none()
    }

    /// Returns the queues that it has named.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &String> {
        self.credits.keys()
    }

    /// Reserves a slot for a job of this size.
    pub(crate) fn reserve(&mut self, queue: &str, bytes: u64) {
        if let Some(credits) = self.credits.get_mut(queue) {
            *credits = credits.saturating_sub(1);
        }
        self.reserved += 1;
        self.bytes += bytes;
    }

    /// Ends a reservation. `unused`: the slot is free again.
    pub(crate) fn unreserve(&mut self, queue: &str, bytes: u64, unused: bool) {
        self.reserved = self.reserved.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if unused && let Some(credits) = self.credits.get_mut(queue) {
            *credits += 1;
        }
    }

    /// Returns when a lane is available to this stream again; `None`: it is.
    pub(crate) fn blocked(&self, lane: &Lane, now: Instant) -> Option<Instant> {
        if self.blocks.is_empty() {
            return None;
        }
        let block = self.blocks.get(&(lane.queue.clone(), lane.route.clone()))?;
        Some(block.until).filter(|until| *until > now)
    }

    /// Takes a lane away after a release.
    pub(crate) fn block(&mut self, lane: &Lane, not_before: Option<Duration>, now: Instant) {
        let entry = self.blocks.entry((lane.queue.clone(), lane.route.clone()));
        let block = entry.or_insert(Block { until: now, length: Duration::ZERO });
        // Several releases at once are one.
        if block.until <= now {
            block.length = (block.length * 2).clamp(SHORTEST_BLOCK, LONGEST_BLOCK);
        }
        block.until = block.until.max(now + block.length.max(not_before.unwrap_or_default()));
    }

    /// Gives a lane back after a delivery that was tried.
    pub(crate) fn unblock(&mut self, lane: &Lane) {
        if !self.blocks.is_empty() {
            self.blocks.remove(&(lane.queue.clone(), lane.route.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> (Worker, Lane) {
        let identity = WorkerIdentity {
            service: "orders".to_owned(),
            cluster: "eu".to_owned(),
            instance: "orders-1".to_owned(),
        };
        let route = RouteKey::new("orders", "eu", "stock", "p.S/M").unwrap();
        let lane = Lane { queue: "later".to_owned(), route };
        (Worker::new(identity, mpsc::channel(1).0, Instant::now()), lane)
    }

    #[test]
    fn credits_of_a_stream_are_limited() {
        let (mut worker, _) = worker();
        worker.give("a", 600).unwrap();
        assert_eq!(worker.give("b", 401), Err(TooManyCredits));
        worker.give("b", 400).unwrap();
        assert_eq!(worker.give("a", u32::MAX), Err(TooManyCredits));
        assert_eq!((worker.credits("a"), worker.credits("b"), worker.credits("c")), (600, 400, 0));
    }

    #[test]
    fn reserved_slot_returns_when_unused() {
        let (mut worker, _) = worker();
        worker.give("a", 2).unwrap();
        worker.reserve("a", 10);
        worker.reserve("a", 20);
        assert_eq!((worker.credits("a"), worker.bytes), (0, 30));
        worker.unreserve("a", 10, true);
        worker.unreserve("a", 20, false);
        assert_eq!((worker.credits("a"), worker.bytes, worker.reserved), (1, 0, 0));
    }

    #[test]
    fn stream_with_16_mib_in_flight_gets_no_more() {
        let (mut worker, _) = worker();
        worker.give("a", 3).unwrap();
        worker.reserve("a", MAX_BYTES_IN_FLIGHT - 1);
        assert_eq!(worker.credits("a"), 2);
        worker.reserve("a", 1);
        assert_eq!(worker.credits("a"), 0);
    }

    #[test]
    fn released_lane_is_blocked_twice_as_long_each_time() {
        let (mut worker, lane) = worker();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            worker.block(&lane, None, now);
            worker.block(&lane, None, now);
            let until = worker.blocked(&lane, now).unwrap();
            assert_eq!(until - now, Duration::from_secs(seconds));
            assert_eq!(worker.blocked(&lane, until), None);
            now = until;
        }
        worker.unblock(&lane);
        worker.block(&lane, Some(Duration::from_secs(90)), now);
        assert_eq!(worker.blocked(&lane, now).unwrap() - now, Duration::from_secs(90));
    }
}
