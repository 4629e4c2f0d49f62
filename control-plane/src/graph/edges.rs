//! Services as nodes, and all routes between two services as one edge.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use damper_core::chain::bound::{DownstreamGain, Flag, Hop, Sends};
use damper_core::{OTHER_METHOD, Pattern, RouteKey};
use damper_proto::{convert, v1};

use crate::push::fleet_state::FleetState;
use crate::state::snapshot::Snapshot;
use crate::stats::Route;
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::{RouteSummary, WHOLE_COVERAGE};

/// The services at the ends of an edge: caller and callee.
pub(crate) type Ends = (Arc<str>, Arc<str>);

/// The call graph.
pub(crate) struct Graph {
    pub(crate) services: Vec<Arc<str>>,
    /// Sorted by caller and callee.
    pub(crate) edges: Vec<Edge>,
    /// The outgoing edges of each service.
    pub(crate) leaving: Vec<Vec<usize>>,
    index: HashMap<Arc<str>, usize>,
}

/// All routes from one service to another.
pub(crate) struct Edge {
    pub(crate) caller: usize,
    pub(crate) callee: usize,
    pub(crate) hops: EdgeAttempts,
    pub(crate) figures: EdgeTraffic,
}

/// The upper bounds of an edge: attempts by the handling of the chain flag; 0 = no such route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EdgeAttempts {
    kept: u32,
    ignored: u32,
    lost: u32,
}

/// The measured rates of an edge, per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EdgeTraffic {
    pub(crate) calls: f64,
    pub(crate) attempts: f64,
    failed: f64,
    total_calls: f64,
    covered: f64,
    pub(crate) routes: u32,
    pub(crate) routes_without_rule: u32,
}

/// The known calls and services at one moment.
pub(crate) struct GraphInput {
    rows: Arc<[Arc<RouteSummary>]>,
    connected: Connected,
}

impl GraphInput {
    pub(crate) fn of(fleet: &FleetState, over: RateWindow, table: &Arc<Snapshot>) -> Self {
        Self { rows: fleet.stats.rows_over(over, table), connected: Connected::of(fleet) }
    }

    /// The routes with a rule, and the rule.
    pub(crate) fn ruled(&self) -> impl Iterator<Item = (&Route, Pattern)> {
        let rule = |row: &RouteSummary| convert::pattern(row.stats.rule.as_ref()?).ok();
        self.rows.iter().filter_map(move |row| Some((&row.route, rule(row)?)))
    }

    /// Returns the graph with the rules of a snapshot.
    pub(crate) fn graph(&self, rules: &Snapshot) -> Graph {
        Graph::made(&self.rows, &self.connected, rules, None)
    }
}

/// The connected services, and those with a server layer.
struct Connected {
    all: HashSet<String>,
    serving: HashSet<String>,
}

impl Graph {
    /// Returns the graph of all known routes with the rules of a snapshot; `also` is a route without reports.
    pub(crate) fn of(
        fleet: &FleetState,
        over: RateWindow,
        seen: &Arc<Snapshot>,
        rules: &Snapshot,
        also: Option<&RouteKey>,
    ) -> Self {
        let GraphInput { rows, connected } = GraphInput::of(fleet, over, seen);
        Self::made(&rows, &connected, rules, also)
    }

    fn made(
        rows: &[Arc<RouteSummary>],
        connected: &Connected,
        rules: &Snapshot,
        also: Option<&RouteKey>,
    ) -> Self {
        let called: HashSet<&str> = rows.iter().map(|row| &*row.route.callee_service).collect();
        let loses_flags = |service: &str| {
            called.contains(service)
                && connected.all.contains(service)
                && !connected.serving.contains(service)
        };
        let mut edges: BTreeMap<(Arc<str>, Arc<str>), (EdgeAttempts, EdgeTraffic)> = BTreeMap::new();
        for row in rows {
            let Route { caller_service, callee_service, .. } = &row.route;
            let (hops, figures) = edges.entry((caller_service.clone(), callee_service.clone())).or_default();
            let in_context = row.stats.chain_coverage >= WHOLE_COVERAGE && !loses_flags(caller_service);
            hops.add(hop(rules, &row.route, in_context));
            figures.add(&row.stats);
        }
        if let Some(route) = also {
            let (caller, callee) = (route.caller_service(), route.callee_service());
            let (hops, _) = edges.entry((caller.into(), callee.into())).or_default();
            hops.add(Hop::of(rules.policy_in_force(route).as_ref(), !loses_flags(caller)));
        }
        let mut graph =
            Self { services: Vec::new(), edges: Vec::new(), leaving: Vec::new(), index: HashMap::new() };
        for ((caller, callee), (hops, figures)) in edges {
            let (caller, callee) = (graph.place(&caller), graph.place(&callee));
            graph.leaving[caller].push(graph.edges.len());
            graph.edges.push(Edge { caller, callee, hops, figures });
        }
        graph
    }

    fn place(&mut self, service: &Arc<str>) -> usize {
        if let Some(place) = self.index.get(service) {
            return *place;
        }
        let place = self.services.len();
        self.services.push(service.clone());
        self.leaving.push(Vec::new());
        self.index.insert(service.clone(), place);
        place
    }

    /// The services at the ends of an edge.
    pub(crate) fn ends(&self, edge: usize) -> Ends {
        let Edge { caller, callee, .. } = self.edges[edge];
        (self.services[caller].clone(), self.services[callee].clone())
    }

    /// The number of a service.
    pub(crate) fn service(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// True if the graph has a cycle.
    pub(crate) fn returns_to(&self, service: usize) -> bool {
        let mut seen = vec![false; self.services.len()];
        let mut open = vec![service];
        while let Some(at) = open.pop() {
            for edge in &self.leaving[at] {
                let next = self.edges[*edge].callee;
                if next == service {
                    return true;
                }
                if !std::mem::replace(&mut seen[next], true) {
                    open.push(next);
                }
            }
        }
        false
    }
}

/// Returns the bounds of a route. For the sum of other routes only rules for all methods are known to apply.
fn hop(rules: &Snapshot, route: &Route, in_context: bool) -> Hop {
    let any_method = || {
        let method = format!("{OTHER_METHOD}/{OTHER_METHOD}");
        RouteKey::new(&route.caller_service, &route.caller_cluster, &route.callee_service, &method).ok()
    };
    let key = route.key().or_else(any_method);
    Hop::of(key.and_then(|key| rules.policy_in_force(&key)).as_ref(), in_context)
}

impl Connected {
    fn of(fleet: &FleetState) -> Self {
        let mut connected = Self { all: HashSet::new(), serving: HashSet::new() };
        for session in fleet.hub.all() {
            let service = &session.class.service;
            if session.serves() && !connected.serving.contains(service) {
                connected.serving.insert(service.clone());
            }
            if !connected.all.contains(service) {
                connected.all.insert(service.clone());
            }
        }
        connected
    }
}

impl EdgeAttempts {
    pub(crate) fn add(&mut self, hop: Hop) {
        let most = match hop.flag {
            Flag::Kept => &mut self.kept,
            Flag::Ignored => &mut self.ignored,
            Flag::Lost => &mut self.lost,
        };
        *most = (*most).max(hop.max_attempts);
    }

    /// The most attempts per call.
    pub(crate) fn max_attempts(self) -> u32 {
        self.kept.max(self.ignored).max(self.lost)
    }

    /// True if attempts multiply on a route.
    pub(crate) fn multiplies(self) -> bool {
        self.ignored > 0 || self.lost > 0
    }

    fn each(self) -> impl Iterator<Item = Hop> {
        let each = [(self.kept, Flag::Kept), (self.ignored, Flag::Ignored), (self.lost, Flag::Lost)];
        let there = each.into_iter().filter(|(max_attempts, _)| *max_attempts > 0);
        there.map(|(max_attempts, flag)| Hop { max_attempts, flag })
    }

    /// Returns the requests after the edge, by the worst of its routes.
    pub(crate) fn carry(self, sends: Sends) -> Sends {
        self.each().fold(sends, |worst, hop| worst.or(sends.over(hop)))
    }

    /// Returns the gain of requests before the edge from the gain after it.
    pub(crate) fn gains(self, behind: DownstreamGain) -> impl Iterator<Item = DownstreamGain> {
        self.each().map(move |hop| behind.before(hop, self.lost > 0))
    }
}

impl EdgeTraffic {
    fn add(&mut self, stats: &v1::RouteStats) {
        self.calls += stats.calls_per_s;
        self.attempts += stats.attempts_per_s;
        self.failed += stats.error_share * stats.calls_per_s;
        let total = stats.total_calls as f64;
        self.total_calls += total;
        self.covered += stats.chain_coverage * total;
        self.routes += 1;
        self.routes_without_rule += u32::from(stats.rule.is_none());
    }

    /// Attempts per call; 0 = no calls.
    pub(crate) fn amplification(&self) -> f64 {
        share(self.attempts, self.calls).unwrap_or(0.0)
    }

    pub(crate) fn error_share(&self) -> f64 {
        share(self.failed, self.calls).unwrap_or(0.0)
    }

    pub(crate) fn chain_coverage(&self) -> f64 {
        share(self.covered, self.total_calls).unwrap_or(1.0)
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
impl Graph {
    /// Creates a graph from edges by their service names, with hops and amplification.
    pub(crate) fn drawn(edges: &[(&str, &str, Hop, f64)]) -> Self {
        let mut graph =
            Self { services: Vec::new(), edges: Vec::new(), leaving: Vec::new(), index: HashMap::new() };
        for (caller, callee, hop, amplification) in edges {
            let (caller, callee) = (graph.place(&Arc::from(*caller)), graph.place(&Arc::from(*callee)));
            graph.leaving[caller].push(graph.edges.len());
            let mut hops = EdgeAttempts::default();
            hops.add(*hop);
            let figures = EdgeTraffic { calls: 1.0, attempts: *amplification, ..EdgeTraffic::default() };
            graph.edges.push(Edge { caller, callee, hops, figures });
        }
        graph
    }
}
