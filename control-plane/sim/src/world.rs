//! One strategy in virtual time: the events, and the loop that makes them happen.
//!
//! ```text
//! load ──> call ──Send──> Deliver ──> queue ──> Worked ──> calls to others ──> Answer ──> call ──Finish──> load
//! ```
//!
//! `client` obeys the engine's steps, `server` serves requests, `load` makes them, `trouble` is what goes wrong.
//! Nothing here decides about repeating anything: that is the engine's [`Call`](damper_core::Call), or a peer's.
//! An event costs no allocation: calls and requests live in slots that are used again.

use damper_core::repeat_limit::{Limits, Served};
use damper_core::{Route, RouteKey, Rule, Table, Time};
use slotmap::SlotMap;
use std::sync::Arc;

use self::client::ActiveCall;
use self::endpoints::Seen;
use self::load::LoadState;
use self::server::{Instance, Request};
use crate::agenda::Agenda;
use crate::ledger::Ledger;
use crate::peers::PeerRoute;
use crate::plan::Plan;
use crate::random::Random;
use crate::scenario::{Peer, Retries, Strategy};

mod client;
mod endpoints;
mod load;
mod server;
mod trouble;

/// How long is waited for what is under way when the load ends. What has not ended then counts as unfinished.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(60);
/// The cluster of every simulated process.
const CLUSTER: &str = "default";

slotmap::new_key_type! {
    /// A call under way.
    struct CallKey;
    /// A request that has been sent and not been answered.
    struct RequestKey;
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The next request of an open load.
    Arrival(usize),
    /// A user of a closed load has thought.
    User(usize),
    /// A request reaches its server.
    Deliver(RequestKey),
    /// A method's own work is done.
    Worked(RequestKey),
    /// An answer reaches its caller.
    Answer(RequestKey),
    /// A server learns that its caller has given up.
    Hangup(RequestKey),
    /// A call wants to be asked; pointless if it asked for another time since.
    Wake(CallKey),
    /// A fault that changes instances comes or goes.
    Trouble(usize),
    /// A process of a load ends, and the next one takes its place.
    Restart(usize),
}

/// What all calls of one process on one route share.
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
    /// The rule in force on each hop.
    rules: Vec<Option<Arc<Rule>>>,
    /// The next instance of each route, where they take turns.
    turns: Vec<u32>,
    /// What each route's process sees of the callee's instances, where its channel looks.
    endpoints: Vec<Vec<Seen>>,
    instances: Vec<Instance>,
    /// Whether the services have a server layer of Damper's.
    has_layer: bool,
    /// By service and method.
    limits: Vec<Vec<Limits>>,
    calls: SlotMap<CallKey, ActiveCall>,
    requests: SlotMap<RequestKey, Request>,
    loads: Vec<LoadState>,
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
            ledger: Ledger::new(plan),
        }
    }

    /// The same, which notes what becomes of each request.
    pub(crate) fn traced(mut self) -> Self {
        self.ledger.traces = Some(Vec::new());
        self
    }

    /// Lets everything happen, and hands over what was noted.
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

    /// What was counted on a route belongs to a process that is gone.
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

/// The repeat limits of each method of each service: those of the guards that match it as a callee. A guard
/// with one is for all callers, the service itself among them.
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

/// What a served method has counted; one per instance and method.
fn served(plan: &Plan<'_>, service: usize) -> Vec<Served> {
    plan.scenario.services[service].methods.iter().map(|_| Served::default()).collect()
}
