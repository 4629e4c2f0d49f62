//! Bounds of hops and paths as messages and as text.

use damper_core::chain::bound::Sends;
use damper_core::{Bound, Policy, RouteKey};
use damper_proto::v1;

use crate::graph::edges::Graph;
use crate::graph::worst_path::{PathCost as _, WorstPath, worst};

/// Returns the bound of one hop, by the policy in force.
pub(crate) fn hop_bound(policy: Option<&Policy>) -> v1::Bound {
    let Bound { max_attempts, steady, free_retries, window } = Bound::of(policy);
    v1::Bound {
        max_attempts,
        steady_attempts_per_call: steady.map_or(0.0, |steady| f64::from(steady.bp()) / 1e4),
        free_retries_per_window: free_retries,
        window: Some(window)
            .filter(|window| !window.is_zero())
            .and_then(|window| prost_types::Duration::try_from(window).ok()),
    }
}

/// Returns the worst chain through a route; `None` if the graph does not have the route.
pub(crate) fn bound_through(graph: &Graph, route: &RouteKey) -> Option<v1::ChainBound> {
    let caller = graph.service(route.caller_service())?;
    let callee = graph.service(route.callee_service())?;
    let edge = |edge: usize| (graph.edges[edge].caller, graph.edges[edge].callee) == (caller, callee);
    worst(graph, &edge).map(|found| bound(graph, &found))
}

/// Returns a path with the bound of each hop.
pub(crate) fn bound(graph: &Graph, found: &WorstPath<Sends>) -> v1::ChainBound {
    let mut sends = Sends::START;
    let hops = found.path.iter().map(|edge| {
        let edge = &graph.edges[*edge];
        sends = edge.hops.carry(sends);
        v1::Hop {
            caller_service: graph.services[edge.caller].to_string(),
            callee_service: graph.services[edge.callee].to_string(),
            max_attempts: edge.hops.max_attempts(),
            sends: sends.all(),
            multiplies: edge.hops.multiplies(),
        }
    });
    let hops = hops.collect();
    let on_path = found.path.iter().flat_map(|edge| [graph.edges[*edge].caller, graph.edges[*edge].callee]);
    let has_circle = on_path.into_iter().any(|service| graph.returns_to(service));
    v1::ChainBound { hops, sends: found.burden.all(), has_circle }
}

/// Formats the services of a chain and the attempts on its last hop.
pub(crate) fn route_text(bound: &v1::ChainBound) -> String {
    let first = bound.hops.first().map_or("", |hop| &hop.caller_service);
    let rest = bound.hops.iter().map(|hop| format!(" -> {}", hop.callee_service)).collect::<String>();
    let sends = bound.sends;
    format!("{first}{rest}: at most {sends} attempts on the last hop per request to {first}")
}

/// Formats the hops on which attempts multiply; empty if there are none.
pub(crate) fn multiplying(bound: &v1::ChainBound) -> String {
    let hops: Vec<String> = bound
        .hops
        .iter()
        .filter(|hop| hop.multiplies)
        .map(|hop| format!("{} -> {}", hop.caller_service, hop.callee_service))
        .collect();
    if hops.is_empty() { String::new() } else { format!("; attempts multiply on {}", hops.join(", ")) }
}
