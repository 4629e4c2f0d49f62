//! Connected clients of this replica and its peers, with their sent and acknowledged revisions.
//!
//! Streams write into their own session ([`crate::clients::session`]). Reports of peers are written into
//! sessions that mirror theirs, and readers take a copy. A process that moves between replicas is known from
//! both for a moment; readers see only the newer one. [`crate::push::outbox`] holds the changes of own
//! clients that are still to be sent to peers.

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

/// All sessions, and the report interval.
pub(crate) struct Sessions {
    /// The id of this replica.
    here: Arc<str>,
    register: Mutex<Register>,
    next: AtomicU64,
    /// The number of open streams of this replica. A counter, because it is read whenever a stream ends.
    own: AtomicUsize,
    /// Incremented when a client connects, disconnects, is sent something or answers.
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

/// The position of a client in lists: by its names, then by its number.
pub(crate) type Ordered = ([String; 3], u64);

/// A registered session; removed when dropped.
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

    /// Returns the report interval, which changes while statistics are watched.
    pub(crate) fn pace(&self) -> watch::Receiver<ReportSchedule> {
        self.pace.subscribe()
    }

    /// Updates the watchers.
    pub(crate) fn change_pace(&self, change: impl FnOnce(&mut ReportSchedule)) {
        self.pace.send_modify(change);
    }

    /// Records that a client of this replica was sent something or has answered.
    pub(crate) fn moved(&self, session: &Arc<ClientSession>) {
        self.outboxes.moved(session);
        self.changed();
    }

    /// Records a change of the sessions.
    pub(crate) fn changed(&self) {
        self.moves.send_modify(|moves| *moves += 1);
    }

    /// Returns a receiver of the change counter.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Queues a report of a client of this replica for the peers.
    pub(crate) fn reported(&self, session: &ClientSession, report: v1::Report) {
        self.outboxes.reported(session, report);
    }

    /// Returns an outbox for a peer, which starts with all clients of this replica. `None` if too many peers
    /// are connected.
    pub(crate) fn followed(&self) -> Option<Arc<Outbox>> {
        // Locked, so that no connect or disconnect is missed.
        let register = self.register();
        self.outboxes.open(register.sessions.values().filter(|session| session.is_own()))
    }

    /// The number of clients connected to any replica.
    pub(crate) fn connected(&self) -> usize {
        self.register().sessions.values().filter(|session| !session.is_superseded()).count()
    }

    /// The number of open streams of this replica.
    pub(crate) fn own_streams(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }

    /// The number of streams that a peer reports.
    pub(crate) fn streams_of(&self, replica: &str) -> usize {
        let of = |session: &&Arc<ClientSession>| session.replica().is_some_and(|id| **id == *replica);
        self.register().sessions.values().filter(of).count()
    }

    /// Returns the sessions of all replicas, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<ClientSession>> {
        self.register().sessions.values().filter(|session| !session.is_superseded()).cloned().collect()
    }

    /// The number of held clients.
    pub(crate) fn held(&self) -> usize {
        self.register().sessions.values().filter(|session| session.is_held()).count()
    }

    /// The epochs that held clients had when they connected, the most frequent first.
    pub(crate) fn held_epochs(&self) -> Vec<String> {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for session in self.register().sessions.values().filter(|session| session.is_held()) {
            *counts.entry(session.claimed_epoch().to_owned()).or_default() += 1;
        }
        let mut epochs: Vec<(String, usize)> = counts.into_iter().collect();
        epochs.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        epochs.into_iter().map(|(epoch, _)| epoch).collect()
    }

    /// Returns the sessions of this replica, in no order.
    pub(crate) fn own(&self) -> Vec<Arc<ClientSession>> {
        self.register().sessions.values().filter(|session| session.is_own()).cloned().collect()
    }

    /// Returns the clients of a service and cluster (empty: any) by name, each with its position in the
    /// order.
    pub(crate) fn clients(&self, service: &str, cluster: &str) -> Vec<(Ordered, Arc<ClientSession>)> {
        let wanted = |asked: &str, is: &str| asked.is_empty() || asked == is;
        let mut sessions = self.all();
        sessions.retain(|s| wanted(service, &s.class.service) && wanted(cluster, &s.class.cluster));
        let placed = |session: Arc<ClientSession>| ((session.names(), session.id()), session);
        let mut sessions: Vec<_> = sessions.into_iter().map(placed).collect();
        sessions.sort_by(|(a, _), (b, _)| a.cmp(b));
        sessions
    }

    /// Returns clients as messages of the API. At most `listed` refused entries and rules that are off are
    /// included.
    pub(crate) fn described<'a>(
        &'a self,
        sessions: impl IntoIterator<Item = &'a Arc<ClientSession>> + 'a,
        view: &'a Snapshot,
        listed: usize,
    ) -> impl Iterator<Item = v1::Client> + 'a {
        // Once per group, because it visits every rule.
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

/// Returns the streams of a process that belong to the replica where it connected last.
fn settle(streams: &[Arc<ClientSession>]) {
    let Some(newest) = streams.iter().max_by_key(|stream| stream.age_rank()) else { return };
    streams.iter().for_each(|stream| stream.supersede(stream.replica() != newest.replica()));
}

impl SessionGuard {
    /// Registers a client of this replica.
    pub(crate) fn new(fleet: &Arc<FleetState>, session: ClientSession) -> Self {
        let admitted = Self::enter(fleet, session);
        fleet.metrics.streams.increment(1.0);
        fleet.hub.changed();
        admitted
    }

    /// Registers a client of a peer.
    pub(crate) fn mirrored(
        fleet: &Arc<FleetState>,
        client: v1::FollowedClient,
        class: ClientGroup,
        replica: Arc<str>,
        epoch: &Arc<str>,
    ) -> Self {
        Self::enter(fleet, ClientSession::mirrored(client, class, replica, epoch, &fleet.table()))
    }

    fn enter(fleet: &Arc<FleetState>, session: ClientSession) -> Self {
        let hub = &fleet.hub;
        let session = Arc::new(session.with_id(hub.next.fetch_add(1, Ordering::Relaxed)));
        // Before the session is announced to peers, so that its reports find it.
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
