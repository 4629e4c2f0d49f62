//! One strategy in virtual time: the events, and the loop that makes them happen.
//!
//! ```text
//! load ──> call ──Send──> Deliver ──> queue ──> Worked ──> calls to others ──> Answer ──> call ──Finish──> load
//! ```
//!
//! `client` obeys the engine's steps, `server` serves requests, `load` makes them, `jobs` delivers those of
//! queues, `trouble` is what goes wrong.
//! Nothing here decides about repeating anything: that is the engine's [`Call`](damper_core::Call), or a peer's.
//! An event costs no allocation: calls and requests live in slots that are used again.

use damper_core::repeat_limit::{Limits, Served};
use damper_core::{Route, RouteKey, Rule, Table, Time};
use slotmap::SlotMap;
use std::sync::Arc;

use self::client::ActiveCall;
use self::endpoints::Seen;
use self::jobs::{Delivery, QueueState};
use self::load::LoadState;
use self::server::{Instance, Request};
use crate::agenda::Agenda;
use crate::ledger::Ledger;
use crate::peers::PeerRoute;
use crate::plan::Plan;
use crate::random::Random;
use crate::scenario::{CLUSTER, Peer, Retries, Strategy};

mod client;
mod endpoints;
mod jobs;
mod load;
mod server;
mod trouble;

/// Time after the end of the load for requests in flight. Later ones count as unfinished.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(60);

slotmap::new_key_type! {
    /// A call in flight.
    struct CallKey;
    /// An attempt in flight.
    struct RequestKey;
    /// A delivery in flight.
    struct JobKey;
}

/// An event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Next request of an open load.
    Arrival(usize),
    /// End of a user's think time in a closed load.
    User(usize),
    /// Arrival of a request at its server.
    Deliver(RequestKey),
    /// End of a method's own work.
    Worked(RequestKey),
    /// Arrival of a response at its caller.
    Answer(RequestKey),
    /// Arrival of a cancellation at a server.
    Hangup(RequestKey),
    /// Time requested by a call; ignored if the call has requested another time since.
    Wake(CallKey),
    /// Start or end of a fault that changes instances.
    Trouble(usize),
    /// End of a process of a load, replaced by the next one.
    Restart(usize),
    /// Submission of the backlog of a queued load.
    Backlog(usize),
    /// Next deliveries of a queue; ignored if they have begun since.
    Jobs(usize),
}

/// State shared by all calls of one process on one route.
#[allow(clippy::large_enum_variant, reason = "most routes of a simulation are of one kind")]
enum RouteSeat {
    Damper(Route),
    Peer(PeerRoute),
}

pub(crate) struct World<'a> {
    plan: &'a Plan<'a>,
    agenda: Agenda<Event>,
    streams: Streams,
    routes: Vec<RouteSeat>,
    /// Rule in force on each hop.
    rules: Vec<Option<Arc<Rule>>>,
    /// Next instance of each route, with round robin.
    turns: Vec<u32>,
    /// Endpoints of the callee as known to each route's process, with a balanced channel.
    endpoints: Vec<Vec<Seen>>,
    instances: Vec<Instance>,
    /// True if the services have Damper's server layer.
    has_layer: bool,
    /// By service and method.
    limits: Vec<Vec<Limits>>,
    calls: SlotMap<CallKey, ActiveCall>,
    requests: SlotMap<RequestKey, Request>,
    loads: Vec<LoadState>,
    queues: Vec<QueueState>,
    deliveries: SlotMap<JobKey, Delivery>,
    ledger: Ledger,
}

/// A stream of random numbers for each use.
struct Streams {
    network: Random,
    service: Random,
    fault: Random,
    balance: Random,
    engine: Random,
}

impl<'a> World<'a> {
    pub(crate) fn new(plan: &'a Plan<'a>, strategy: &Strategy, seed: u64) -> Self {
        let (table, has_layer) = match &strategy.retries {
            Retries::Damper { rules, guards } => {
                let mut table: Table = rules.iter().cloned().map(Arc::new).collect();
                guards.iter().cloned().for_each(|guard| _ = table.insert_guard(Arc::new(guard)));
                (table, true)
            }
            Retries::Peer(_) => (Table::default(), false),
        };
        let rules: Vec<_> = plan
            .hops
            .iter()
            .map(|hop| table.in_force(&key(hop.caller, &hop.target.service, &hop.target.method)?))
            .collect();
        let seat = |(route, hop): (usize, &usize)| match &strategy.retries {
            _ if plan.is_bare(route) => RouteSeat::Peer(PeerRoute::new(Peer::naive(1))),
            Retries::Damper { .. } => RouteSeat::Damper(Route::new(rules[*hop].clone())),
            Retries::Peer(peer) => {
                RouteSeat::Peer(PeerRoute::new(peer.towards(&plan.hops[*hop].target.service)))
            }
        };
        let stream = |number| Random::new(seed, number);
        let loads = 0..plan.scenario.load.len();
        Self {
            plan,
            agenda: Agenda::new(),
            streams: Streams {
                network: stream(0),
                service: stream(1),
                fault: stream(2),
                balance: stream(3),
                engine: stream(4),
            },
            routes: plan.routes.iter().enumerate().map(seat).collect(),
            rules,
            turns: vec![0; plan.routes.len()],
            endpoints: plan.routes.iter().map(|hop| endpoints::seen(plan, *hop)).collect(),
            instances: plan.instances.iter().map(|service| Instance::new(plan, *service)).collect(),
            has_layer,
            limits: limits(plan, &table),
            calls: SlotMap::with_key(),
            requests: SlotMap::with_key(),
            loads: loads.map(|load| LoadState::new(stream(5 + load as u32))).collect(),
            queues: jobs::queues(plan, strategy),
            deliveries: SlotMap::with_key(),
            ledger: Ledger::new(plan),
        }
    }

    /// Runs with a trace of each request.
    pub(crate) fn traced(mut self) -> Self {
        self.ledger.traces = Some(Vec::new());
        self
    }

    /// Runs all events and returns the ledger.
    pub(crate) fn run(mut self) -> Ledger {
        self.begin_trouble();
        self.begin_loads();
        let last = self.plan.end + DRAIN;
        while let Some(event) = self.agenda.next(last) {
            match event {
                Event::Arrival(load) => self.arrival(load),
                Event::User(load) => self.user(load),
                Event::Deliver(request) => self.deliver(request),
                Event::Worked(request) => self.worked(request),
                Event::Answer(request) => self.answered(request),
                Event::Hangup(request) => self.hung_up(request),
                Event::Wake(call) => self.wake(call),
                Event::Trouble(fault) => self.trouble(fault),
                Event::Restart(load) => self.restart_caller(load),
                Event::Backlog(load) => self.backlog(load),
                Event::Jobs(queue) => self.deliver_jobs(queue),
            }
        }
        for call in self.calls.values() {
            self.ledger.unfinished(call.hop, call.is_request());
        }
        self.ledger.events = self.agenda.noted();
        self.ledger
    }

    fn now(&self) -> Time {
        self.agenda.now()
    }

    /// Removes the state of an ended process from a route.
    fn forget(&mut self, route: usize) {
        match &mut self.routes[route] {
            RouteSeat::Damper(state) => *state = Route::new(self.rules[self.plan.routes[route]].clone()),
            RouteSeat::Peer(state) => state.forget(),
        }
    }

    fn network_us(&mut self) -> u64 {
        self.plan.scenario.network.draw(&mut self.streams.network)
    }
}

/// Returns the retry limits of each method of each service: those of guards that match it as a callee. A
/// guard with one applies to all callers, including the service itself.
fn limits(plan: &Plan<'_>, table: &Table) -> Vec<Vec<Limits>> {
    let of = |service: &str, method: &str| {
        let key = key(service, service, method);
        let guards = key.iter().flat_map(|key| table.guards_of(key));
        guards.filter_map(|guard| guard.ceiling().repeat_limit).collect()
    };
    let services = plan.scenario.services.iter();
    services
        .map(|service| service.methods.iter().map(|method| of(&service.name, &method.name)).collect())
        .collect()
}

fn key(caller: &str, callee: &str, method: &str) -> Option<RouteKey> {
    RouteKey::new(caller, CLUSTER, callee, method).ok()
}

/// Retry limit counters of a served method, per instance and method.
fn served(plan: &Plan<'_>, service: usize) -> Vec<Served> {
    plan.scenario.services[service].methods.iter().map(|_| Served::default()).collect()
}
