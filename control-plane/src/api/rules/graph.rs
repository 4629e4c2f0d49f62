//! `Fleet.GetChain`: every edge, the worst paths as measured and as bounded by the rules, and the worst path
//! of each rule.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use damper_core::Pattern;
use damper_proto::v1;

use crate::cluster::Cluster;
use crate::graph::edge_bounds::through;
use crate::graph::edges::{Edge, Ends, Graph, GraphInput};
use crate::graph::wire;
use crate::graph::worst_path::{MeasuredCost, WorstPath, worst};
use crate::state::error::ApiError;
use crate::stats::rate_window::RateWindow;

/// The most edges, and the most rules, in one response.
const MAX_EDGES: usize = 5_000;
const MAX_RULES: usize = 10_000;

pub(crate) async fn get(
    cluster: &Arc<Cluster>,
    max_amplification: u32,
    request: v1::GetChainRequest,
) -> Result<v1::GetChainResponse, ApiError> {
    let over = RateWindow::read("window", request.window)?;
    cluster.off_runtime(move |cluster| chain(cluster, max_amplification, over, &request)).await
}

fn chain(
    cluster: &Cluster,
    max_amplification: u32,
    over: RateWindow,
    request: &v1::GetChainRequest,
) -> Result<v1::GetChainResponse, ApiError> {
    let (table, service) = (cluster.fleet.table(), &request.service);
    let seen = GraphInput::of(&cluster.fleet, over, &table);
    let graph = seen.graph(&table);
    let at = if service.is_empty() { None } else { Some(known(&graph, service)?) };
    let leads = at.map(|service| leads_to_or_from(&graph, service));
    let shown = |edge: usize| leads.as_ref().is_none_or(|leads| leads[edge]);
    let touches = |edge: usize| {
        let Edge { caller, callee, .. } = graph.edges[edge];
        at.is_none_or(|service| service == caller || service == callee)
    };
    let most = if request.without_edges { 0 } else { MAX_EDGES };
    let edges = (0..graph.edges.len()).filter(|edge| shown(*edge)).take(most);
    Ok(v1::GetChainResponse {
        edges: edges.map(|edge| wire(&graph, &graph.edges[edge])).collect(),
        worst_measured: worst::<MeasuredCost>(&graph, &touches).map(|found| measured(&graph, &found)),
        worst_possible: worst(&graph, &touches).map(|found| wire::bound(&graph, &found)),
        window: over.wire(),
        missing_replicas: cluster.peers.missing(),
        limit: max_amplification,
        rules: if request.rules { rules(&seen, &graph) } else { Vec::new() },
    })
}

/// Returns the worst chain through a route of each rule that applies to any.
fn rules(seen: &GraphInput, graph: &Graph) -> Vec<v1::RuleBound> {
    let through = through(graph);
    let worst: HashMap<Ends, u64> =
        (0..graph.edges.len()).map(|edge| (graph.ends(edge), through[edge])).collect();
    let mut bounds: HashMap<Pattern, u64> = HashMap::new();
    for (route, rule) in seen.ruled() {
        let ends = (route.caller_service.clone(), route.callee_service.clone());
        let sends = worst.get(&ends).copied().unwrap_or(1);
        let most = bounds.entry(rule).or_default();
        *most = sends.max(*most);
    }
    let mut bounds: Vec<(Pattern, u64)> = bounds.into_iter().collect();
    bounds.sort_by_cached_key(|(rule, sends)| (Reverse(*sends), rule.to_string()));
    bounds.truncate(MAX_RULES);
    bounds.into_iter().map(|(rule, sends)| v1::RuleBound { rule: Some((&rule).into()), sends }).collect()
}

fn known(graph: &Graph, service: &str) -> Result<usize, ApiError> {
    graph.service(service).ok_or_else(|| {
        ApiError::NotFound(format!(
            "no route from or to the service {service} is known: list the routes with `damper routes`"
        ))
    })
}

/// Returns for each edge whether it is on a path to or from the service.
fn leads_to_or_from(graph: &Graph, service: usize) -> Vec<bool> {
    let mut arriving: Vec<Vec<usize>> = vec![Vec::new(); graph.services.len()];
    for (number, edge) in graph.edges.iter().enumerate() {
        arriving[edge.callee].push(number);
    }
    let mut leads = vec![false; graph.edges.len()];
    follow(graph, service, &graph.leaving, |edge| edge.callee, &mut leads);
    follow(graph, service, &arriving, |edge| edge.caller, &mut leads);
    leads
}

/// Marks every edge reachable from a service. `edges_at` returns the next edges, `end` the other end of an
/// edge.
fn follow(
    graph: &Graph,
    service: usize,
    edges_at: &[Vec<usize>],
    end: impl Fn(&Edge) -> usize,
    met: &mut [bool],
) {
    let mut seen = vec![false; graph.services.len()];
    seen[service] = true;
    let mut open = vec![service];
    while let Some(at) = open.pop() {
        for edge in &edges_at[at] {
            met[*edge] = true;
            let next = end(&graph.edges[*edge]);
            if !std::mem::replace(&mut seen[next], true) {
                open.push(next);
            }
        }
    }
}

fn wire(graph: &Graph, edge: &Edge) -> v1::Edge {
    let figures = &edge.figures;
    v1::Edge {
        caller_service: graph.services[edge.caller].to_string(),
        callee_service: graph.services[edge.callee].to_string(),
        calls_per_s: figures.calls,
        attempts_per_s: figures.attempts,
        amplification: figures.amplification(),
        error_share: figures.error_share(),
        routes: figures.routes,
        routes_without_rule: figures.routes_without_rule,
        max_attempts: edge.hops.max_attempts(),
        chain_coverage: figures.chain_coverage(),
    }
}

fn measured(graph: &Graph, found: &WorstPath<MeasuredCost>) -> v1::MeasuredPath {
    let first = found.path.first().map(|edge| graph.edges[*edge].caller);
    let rest = found.path.iter().map(|edge| graph.edges[*edge].callee);
    let services = first.into_iter().chain(rest).map(|service| graph.services[service].to_string());
    v1::MeasuredPath { services: services.collect(), amplification: found.burden.0 }
}
