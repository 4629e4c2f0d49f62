//! Who is connected, and what each was sent and acknowledged: here, and at the other replicas.
//!
//! The hub is a register: streams write into their own session ([`session`]), what other replicas tell is written into
//! sessions that mirror theirs, and readers take a copy. It decides nothing about what is sent. A process that moves
//! from one replica to another is known from both for a moment; readers see only where it came last. [`outbox`] holds
//! what the other replicas have still to be told, of own clients only.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use damper_proto::v1;
use tokio::sync::watch;

use crate::clients::group::{ClientGroup, Withheld};
use crate::clients::session::ClientSession;
use crate::push::fleet_state::FleetState;
use crate::push::outbox::Outbox;
use crate::push::outbox::Outboxes;
use crate::state::snapshot::Snapshot;
use crate::stats::report_interval::ReportSchedule;

/// All sessions, and how often they report.
pub(crate) struct Sessions {
    /// This replica.
    here: Arc<str>,
    register: Mutex<Register>,
    next: AtomicU64,
    /// How many streams are open to this replica; counted, because whoever stops asks with every one that ends.
    own: AtomicUsize,
    /// Rises whenever a client comes, goes, is sent something or answers.
    moves: watch::Sender<u64>,
    pace: watch::Sender<ReportSchedule>,
    outboxes: Outboxes,
}

#[derive(Default)]
struct Register {
    sessions: HashMap<u64, Arc<ClientSession>>,
    /// The streams of each process, by its names.
    processes: HashMap<[String; 3], Vec<Arc<ClientSession>>>,
}

/// Where a client is in lists: by its names, then by its number.
pub(crate) type Ordered = ([String; 3], u64);

/// A session in the register; dropping it takes it out.
pub(crate) struct SessionGuard {
    pub(crate) session: Arc<ClientSession>,
    fleet: Arc<FleetState>,
}

impl Sessions {
    pub(crate) fn new(here: Arc<str>, report_interval: Duration, watched: Duration) -> Self {
        Self {
            here,
            register: Mutex::default(),
            next: AtomicU64::new(1),
            own: AtomicUsize::new(0),
            moves: watch::Sender::new(0),
            pace: watch::Sender::new(ReportSchedule::new(report_interval, watched)),
            outboxes: Outboxes::default(),
        }
    }

    fn register(&self) -> MutexGuard<'_, Register> {
        self.register.lock().expect("no holder of the lock panics")
    }

    /// How often clients report now; changes with who watches.
    pub(crate) fn pace(&self) -> watch::Receiver<ReportSchedule> {
        self.pace.subscribe()
    }

    /// Somebody begins or ceases to watch.
    pub(crate) fn change_pace(&self, change: impl FnOnce(&mut ReportSchedule)) {
        self.pace.send_modify(change);
    }

    /// One of this replica's clients was sent something or has answered.
    pub(crate) fn moved(&self, session: &Arc<ClientSession>) {
        self.outboxes.moved(session);
        self.changed();
    }

    /// Something has changed of what the hub tells.
    pub(crate) fn changed(&self) {
        self.moves.send_modify(|moves| *moves += 1);
    }

    /// Rises with every such event.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// One of this replica's clients has reported.
    pub(crate) fn reported(&self, session: &ClientSession, report: v1::Report) {
        self.outboxes.reported(session, report);
    }

    /// What a replica that follows this one is to be told: at first of everybody who is connected here. None where too
    /// many follow.
    pub(crate) fn followed(&self) -> Option<Arc<Outbox>> {
        // Locked, so that nobody comes or goes meanwhile unnoticed.
        let register = self.register();
        self.outboxes.open(register.sessions.values().filter(|session| session.is_own()))
    }

    /// How many clients are connected, here or to other replicas.
    pub(crate) fn connected(&self) -> usize {
        self.register().sessions.values().filter(|session| !session.is_superseded()).count()
    }

    /// How many streams are open to this replica.
    pub(crate) fn own_streams(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }

    /// How many streams are said to be open to another replica.
    pub(crate) fn streams_of(&self, replica: &str) -> usize {
        let of = |session: &&Arc<ClientSession>| session.replica().is_some_and(|id| **id == *replica);
        self.register().sessions.values().filter(of).count()
    }

    /// The sessions of the whole fleet, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<ClientSession>> {
        self.register().sessions.values().filter(|session| !session.is_superseded()).cloned().collect()
    }

    /// How many clients hold more than their server knows.
    pub(crate) fn held(&self) -> usize {
        self.register().sessions.values().filter(|session| session.is_held()).count()
    }

    /// The epochs that such clients held when they connected, those of most clients first.
    pub(crate) fn held_epochs(&self) -> Vec<String> {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for session in self.register().sessions.values().filter(|session| session.is_held()) {
            *counts.entry(session.claimed_epoch().to_owned()).or_default() += 1;
        }
        let mut epochs: Vec<(String, usize)> = counts.into_iter().collect();
        epochs.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        epochs.into_iter().map(|(epoch, _)| epoch).collect()
    }

    /// The sessions of this replica, in no order.
    pub(crate) fn own(&self) -> Vec<Arc<ClientSession>> {
        self.register().sessions.values().filter(|session| session.is_own()).cloned().collect()
    }

    /// The clients of a service and cluster (empty = any), by name, each with its place in the order.
    pub(crate) fn clients(&self, service: &str, cluster: &str) -> Vec<(Ordered, Arc<ClientSession>)> {
        let wanted = |asked: &str, is: &str| asked.is_empty() || asked == is;
        let mut sessions = self.all();
        sessions.retain(|s| wanted(service, &s.class.service) && wanted(cluster, &s.class.cluster));
        let placed = |session: Arc<ClientSession>| ((session.names(), session.id()), session);
        let mut sessions: Vec<_> = sessions.into_iter().map(placed).collect();
        sessions.sort_by(|(a, _), (b, _)| a.cmp(b));
        sessions
    }

    /// Clients as operators see them, one after the other. Of what each refuses, and of the rules that are off there,
    /// the first `listed` are listed.
    pub(crate) fn described<'a>(
        &'a self,
        sessions: impl IntoIterator<Item = &'a Arc<ClientSession>> + 'a,
        view: &'a Snapshot,
        listed: usize,
    ) -> impl Iterator<Item = v1::Client> + 'a {
        // Once per class: it is a look at every rule.
        let mut withheld: HashMap<&ClientGroup, Withheld> = HashMap::new();
        sessions.into_iter().map(move |session| {
            let class = &*session.class;
            let withheld = withheld.entry(class).or_insert_with(|| class.withheld(view, listed));
            session.describe(view, withheld, listed, &self.here)
        })
    }
}

impl Register {
    fn enter(&mut self, session: &Arc<ClientSession>) {
        self.sessions.insert(session.id(), session.clone());
        let streams = self.processes.entry(session.names()).or_default();
        streams.push(session.clone());
        settle(streams);
    }

    fn leave(&mut self, session: &ClientSession) {
        self.sessions.remove(&session.id());
        let names = session.names();
        let Some(streams) = self.processes.get_mut(&names) else { return };
        streams.retain(|stream| stream.id() != session.id());
        settle(streams);
        if streams.is_empty() {
            self.processes.remove(&names);
        }
    }
}

/// Of the streams of one process those count that are at the replica to which it came last.
fn settle(streams: &[Arc<ClientSession>]) {
    let Some(newest) = streams.iter().max_by_key(|stream| stream.age_rank()) else { return };
    streams.iter().for_each(|stream| stream.supersede(stream.replica() != newest.replica()));
}

impl SessionGuard {
    /// Enters a client of this replica into the register.
    pub(crate) fn new(fleet: &Arc<FleetState>, session: ClientSession) -> Self {
        let admitted = Self::enter(fleet, session);
        fleet.metrics.streams.increment(1.0);
        fleet.hub.changed();
        admitted
    }

    /// Enters a client of another replica, as that tells of it.
    pub(crate) fn mirrored(
        fleet: &Arc<FleetState>,
        told: v1::FollowedClient,
        class: ClientGroup,
        replica: Arc<str>,
        epoch: &Arc<str>,
    ) -> Self {
        Self::enter(fleet, ClientSession::mirrored(told, class, replica, epoch, &fleet.table()))
    }

    fn enter(fleet: &Arc<FleetState>, session: ClientSession) -> Self {
        let hub = &fleet.hub;
        let session = Arc::new(session.with_id(hub.next.fetch_add(1, Ordering::Relaxed)));
        // Before the register tells others of it, so that its reports find their place.
        fleet.stats.connected(&session);
        let mut register = hub.register();
        register.enter(&session);
        if session.is_own() {
            hub.own.fetch_add(1, Ordering::Relaxed);
            hub.outboxes.came(&session);
        }
        drop(register);
        Self { session, fleet: fleet.clone() }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let hub = &self.fleet.hub;
        let mut register = hub.register();
        register.leave(&self.session);
        if self.session.is_own() {
            hub.own.fetch_sub(1, Ordering::Relaxed);
            hub.outboxes.left(&self.session);
            self.fleet.metrics.streams.decrement(1.0);
        }
        drop(register);
        self.fleet.stats.disconnected(&self.session);
        hub.changed();
    }
}
