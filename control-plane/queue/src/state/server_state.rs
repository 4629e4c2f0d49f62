//! All that is known in memory: queues with their lanes, workers, and leases.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use damper_core::Mode;
use damper_core::job::{Outcome, Queue, QueueSettings, Wall};
use tokio::sync::mpsc;

use crate::clock::Now;
use crate::id::LeaseId;
use crate::queues::Queues;
use crate::state::lane::Asked;
use crate::state::lease::{End, GRACE, Lease, LeaseKey, Leases, RETURN_WITHIN};
use crate::state::lease::{Ended, HowEnded};
use crate::state::queue::QueueState;
use crate::state::quota::Quotas;
use crate::state::worker::{TooManyCredits, Worker, WorkerNo};
use crate::store::{self, JobId, Lane, LaneCounts, Record};
use crate::worker::{ToWorker, WorkerIdentity};

/// A lane without jobs is forgotten after this.
const LANE_MEMORY: Duration = Duration::from_secs(3600);

/// The state of the scheduler.
pub(crate) struct State {
    /// Identity of the store.
    pub(crate) store: u64,
    pub(crate) queues: Arc<Queues>,
    pub(crate) by_name: BTreeMap<Arc<str>, QueueState>,
    pub(crate) workers: HashMap<WorkerNo, Worker>,
    pub(crate) leases: Leases,
    pub(crate) quotas: Quotas,
    pub(crate) asked: Asked,
    /// The last queue served.
    pub(crate) cursor: Arc<str>,
    pub(crate) is_stopping: bool,
    next_worker: WorkerNo,
    last_id: JobId,
    no_policy: Arc<Queue>,
}

/// Returns the defaults, for jobs of a queue that this process knew no policy of.
fn no_policy() -> Queue {
    let settings = QueueSettings::new(Mode::Off);
    Queue::new("none".to_owned(), settings, String::new(), 0).expect("the defaults are valid")
}

impl State {
    pub(crate) fn new(store: u64, queues: Arc<Queues>) -> Self {
        Self {
            store,
            queues,
            by_name: BTreeMap::new(),
            workers: HashMap::new(),
            leases: Leases::default(),
            quotas: Quotas::default(),
            asked: Asked::default(),
            cursor: "".into(),
            is_stopping: false,
            next_worker: 0,
            last_id: JobId([0; 16]),
            no_policy: Arc::new(no_policy()),
        }
    }

    /// Returns the state of a queue, a new one if there is none.
    pub(crate) fn queue(&mut self, name: &str) -> &mut QueueState {
        if !self.by_name.contains_key(name) {
            let name: Arc<str> = name.into();
            self.by_name.insert(name.clone(), QueueState::new(name));
        }
        self.by_name.get_mut(name).expect("it was inserted")
    }

    /// Returns the id of a new job, greater than all before: jobs of one millisecond keep their order.
    pub(crate) fn new_id(&mut self, now: Wall) -> JobId {
        let mut random = [0; 10];
        getrandom::fill(&mut random).expect("the system has random numbers");
        let after_last = JobId(u128::from_be_bytes(self.last_id.0).saturating_add(1).to_be_bytes());
        self.last_id = JobId::new(now, random).max(after_last);
        self.last_id
    }

    /// Puts other queues and kills in force.
    pub(crate) fn replace(&mut self, queues: Arc<Queues>) {
        self.queues = queues;
        for queue in self.by_name.values_mut() {
            queue.is_dirty = true;
        }
    }

    /// Jobs wait in these lanes from these times on.
    pub(crate) fn wakes(&mut self, due: &HashMap<Arc<Lane>, Wall>, now: Now) {
        let asked = self.asked;
        for (lane, at) in due {
            let queue = self.queue(&lane.queue);
            queue.lanes.entry(lane, now.instant).wakes(*at, asked);
            queue.is_dirty = true;
        }
    }

    /// Takes over a read of all lanes.
    pub(crate) fn refresh(&mut self, lanes: &[LaneCounts], read: u64, now: Now) {
        let found: HashSet<&Arc<Lane>> = lanes.iter().map(|counts| &counts.lane).collect();
        for counts in lanes {
            let queue = self.queue(&counts.lane.queue);
            queue.lanes.entry(&counts.lane, now.instant).refresh(counts, read);
        }
        for queue in self.by_name.values_mut() {
            queue.is_dirty = true;
            for lane in queue.lanes.iter_mut().filter(|lane| !found.contains(&lane.lane)) {
                lane.clear(read, now.instant);
            }
            queue.lanes.retain(|lane| {
                found.contains(&lane.lane) || now.instant.duration_since(lane.empty_since) < LANE_MEMORY
            });
        }
        self.quotas.refresh(lanes, read);
    }

    /// Adds a stream without credits.
    pub(crate) fn connect(
        &mut self,
        identity: WorkerIdentity,
        out: mpsc::Sender<ToWorker>,
        now: Now,
    ) -> WorkerNo {
        self.next_worker += 1;
        self.workers.insert(self.next_worker, Worker::new(identity, out, now.instant));
        self.next_worker
    }

    /// Gives a lease to the stream at which its worker named it. False: it is not kept here.
    pub(crate) fn resume(&mut self, no: WorkerNo, id: LeaseId, now: Now) -> bool {
        let Some(lease) = self.leases.named(id) else { return false };
        let Some(worker) = self.workers.get_mut(&no) else { return false };
        let (key, bytes) = (lease.key(), lease.bytes);
        let before = lease.worker.replace(no);
        // It runs, or the worker would not name it.
        lease.has_begun = true;
        worker.leases.insert(key);
        worker.bytes += bytes;
        if lease.is_alone {
            worker.alone = Some(key);
        }
        if let Some(other) = before.filter(|before| *before != no).and_then(|no| self.workers.get_mut(&no)) {
            other.leases.remove(&key);
            other.bytes = other.bytes.saturating_sub(bytes);
            other.alone = other.alone.filter(|alone| *alone != key);
        }
        self.leases.relist(key, Some(now.instant));
        true
    }

    /// Adds free slots of a stream.
    pub(crate) fn credit(&mut self, no: WorkerNo, queue: &str, more: u32) -> Result<(), TooManyCredits> {
        let Some(worker) = self.workers.get_mut(&no) else { return Ok(()) };
        worker.give(queue, more)?;
        let queue = self.queue(queue);
        if !queue.workers.contains(&no) {
            queue.workers.push(no);
        }
        queue.is_dirty = true;
        Ok(())
    }

    /// A stream has sent a message. Returns true if it can get deliveries again.
    pub(crate) fn is_alive(&mut self, no: WorkerNo, now: Now) -> bool {
        let Some(worker) = self.workers.get_mut(&no) else { return false };
        worker.last_message = now.instant;
        let was_silent = std::mem::take(&mut worker.is_silent);
        if was_silent {
            for name in worker.queues() {
                if let Some(queue) = self.by_name.get_mut(&**name) {
                    queue.is_dirty = true;
                }
            }
            self.send_alone(no, now);
        }
        was_silent
    }

    /// The handlers of deliveries have started.
    pub(crate) fn started(&mut self, no: WorkerNo, leases: &[LeaseId]) {
        for id in leases {
            if let Some(lease) = self.leases.named(*id).filter(|lease| lease.worker == Some(no)) {
                lease.has_begun = true;
            }
        }
    }

    /// A stream wants no further jobs. Returns its deliveries that have not begun, to be released.
    pub(crate) fn leaves(&mut self, no: WorkerNo) -> Vec<Ended> {
        let Some(worker) = self.workers.get_mut(&no) else { return Vec::new() };
        (worker.is_leaving, worker.has_sent_bye) = (true, true);
        let keys: Vec<LeaseKey> = worker.leases.iter().copied().chain(worker.alone).collect();
        self.end_leases(keys, |lease| (!lease.has_begun).then_some(HowEnded::Released(Duration::ZERO)))
    }

    /// Removes a stream. After a Bye its deliveries end at once; else its worker has some time to return.
    pub(crate) fn disconnect(&mut self, no: WorkerNo, now: Now) -> Vec<Ended> {
        let is_stopping = self.is_stopping;
        let Some(worker) = self.workers.remove(&no) else { return Vec::new() };
        for name in worker.queues() {
            if let Some(queue) = self.by_name.get_mut(&**name) {
                queue.workers.retain(|other| *other != no);
                queue.is_dirty = true;
            }
        }
        let mut keys: Vec<LeaseKey> = worker.leases.into_iter().collect();
        for key in &keys {
            if let Some(lease) = self.leases.get_mut(*key) {
                lease.worker = None;
                lease.end.without_worker = now.instant + RETURN_WITHIN;
            }
            self.leases.relist(*key, None);
        }
        // A job that waited for this worker alone.
        let unsent = worker.alone.filter(|key| !keys.contains(key));
        keys.extend(unsent);
        let ends = |lease: &Lease| lease.unsent.is_some() || worker.has_sent_bye && !is_stopping;
        self.end_leases(keys, |lease| ends(lease).then(|| HowEnded::of(lease)))
    }

    /// Returns the leases that have ended by themselves. A worker that was silent gets no other ones until it
    /// sends something: they would end at once.
    pub(crate) fn ended(&mut self, now: Now) -> Vec<Ended> {
        let workers = &self.workers;
        let keys = self.leases.ended(now.instant, |no| workers.get(&no).map(|worker| worker.last_message));
        for lease in keys.iter().filter_map(|key| self.leases.get(*key)) {
            if let Some(worker) = lease.worker.and_then(|no| self.workers.get_mut(&no)) {
                worker.is_silent |= worker.last_message + lease.end.silence <= now.instant;
            }
        }
        let how = |key| self.leases.get(key).map(|lease| Ended { key, how: HowEnded::of(lease) });
        keys.into_iter().filter_map(how).collect()
    }

    fn end_leases(&mut self, keys: Vec<LeaseKey>, end: impl Fn(&Lease) -> Option<HowEnded>) -> Vec<Ended> {
        let mut ended = Vec::new();
        for key in keys {
            if let Some(lease) = self.leases.get_mut(key).filter(|lease| !lease.is_settling)
                && let Some(how) = end(lease)
            {
                lease.is_settling = true;
                ended.push(Ended { key, how });
            }
        }
        ended
    }

    /// Adds a lease of this server that no stream has: after a restart, or taken over from another server.
    pub(crate) fn adopt(&mut self, mut lease: Lease, now: Now) {
        lease.has_begun = true;
        let lane = lease.record.lane.clone();
        if self.leases.get(lease.key()).is_none() {
            let policy = self.policy(&lane.queue);
            self.queue(&lane.queue).resume(&policy, &lane.route, now.time);
            self.leases.insert(lease, None);
        }
    }

    /// Drops all leases: other servers keep them now.
    pub(crate) fn drop_leases(&mut self, now: Now) {
        let keys: Vec<LeaseKey> = self.leases.iter().map(Lease::key).collect();
        for key in keys {
            self.settled(key, &Outcome::Unknown, now);
        }
    }

    /// Removes a lease whose settlement is durable.
    pub(crate) fn settled(&mut self, key: LeaseKey, outcome: &Outcome, now: Now) -> Option<Lease> {
        let lease = self.leases.remove(key)?;
        let lane = lease.record.lane.clone();
        let policy = self.policy(&lane.queue);
        self.queue(&lane.queue).end(&policy, &lane.route, outcome, now.time);
        if let Some(no) = lease.worker
            && let Some(worker) = self.workers.get_mut(&no)
        {
            worker.leases.remove(&key);
            worker.bytes = worker.bytes.saturating_sub(lease.bytes);
            worker.alone = worker.alone.filter(|alone| *alone != key);
            for name in worker.queues() {
                if let Some(queue) = self.by_name.get_mut(&**name) {
                    queue.is_dirty = true;
                }
            }
            self.send_alone(no, now);
        }
        Some(lease)
    }

    /// Returns the policy of a queue; of one without a policy the last known, else the defaults.
    pub(crate) fn policy(&self, name: &str) -> Arc<Queue> {
        let known = self.queues.get(name).or_else(|| self.by_name.get(name)?.policy.as_ref());
        known.unwrap_or(&self.no_policy).clone()
    }

    /// Returns the lease of a job; `None` if the store does not have it as leased.
    pub(crate) fn lease_of(&self, record: Record, now: Now) -> Option<Lease> {
        let store::State::Leased { token, .. } = record.state else { return None };
        let (end, bytes) = (self.end_of(&record.lane.queue, now), u64::from(record.body_bytes));
        Some(Lease::new(record, token, bytes, end))
    }

    /// Returns the times at which a new lease ends by itself.
    pub(crate) fn end_of(&self, queue: &str, now: Now) -> End {
        let policy = self.policy(queue);
        let settings = policy.settings();
        End {
            deadline: now.instant + settings.per_attempt_timeout() + GRACE,
            silence: settings.lease,
            without_worker: now.instant + settings.lease,
        }
    }
}
