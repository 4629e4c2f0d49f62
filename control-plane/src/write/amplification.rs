//! The amplification of the routes of a pattern, before and after a write of its rule.
//!
//! The bound of the hop is that of the pattern, by its rule or the next less specific one, with or without
//! known routes. The bound along the chain covers the known routes that use the rule, as written or until
//! deleted. Routes under a more specific rule do not change.

use std::collections::HashSet;

use damper_core::chain::bound::Sends;
use damper_core::{Pattern, RouteKey};
use damper_proto::v1;

use crate::graph::edges::{Ends, Graph};
use crate::graph::wire;
use crate::graph::worst_path::worst;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::chain_comparison::ChainComparison;

/// Amplification before and after the write.
pub(crate) type AmplificationChange = (v1::Amplification, v1::Amplification);

/// Returns the change for a write of one rule; `None` for other writes.
pub(crate) fn amplified(write: &ChainComparison<'_>) -> Option<AmplificationChange> {
    let [edit] = write.edits else { return None };
    let Some(ResourceKey::Rule(pattern)) = ResourceKey::of_key(&edit.key) else { return None };
    let with_rule = if edit.value.is_some() { &write.after } else { &**write.before };
    let ends = ends_of(write, with_rule, &pattern);
    let chains = (!ends.is_empty())
        .then(|| [write.graph_before(), write.graph_after()].map(|graph| worst_over(graph, &ends)));
    let [chain_before, chain_after] = chains.unwrap_or_default();
    let amplification = |table: &Snapshot, chain| v1::Amplification {
        bound: Some(wire::hop_bound(table.policy_for(&pattern).as_ref())),
        chain,
    };
    Some((amplification(write.before, chain_before), amplification(&write.after, chain_after)))
}

/// Returns the change on one route, by the rules in force.
pub(crate) fn amplified_on(write: &ChainComparison<'_>, route: &RouteKey) -> AmplificationChange {
    let of = |table: &Snapshot, graph: &Graph| v1::Amplification {
        bound: Some(wire::hop_bound(table.policy_in_force(route).as_ref())),
        chain: wire::bound_through(graph, route),
    };
    (of(write.before, write.graph_before()), of(&write.after, write.graph_after()))
}

/// Returns the edges of the known routes that use the rule of a pattern.
fn ends_of(write: &ChainComparison<'_>, table: &Snapshot, pattern: &Pattern) -> HashSet<Ends> {
    let known = write.writes.fleet.stats.keys();
    let by_it = known.iter().filter(|route| {
        pattern.matches(route) && table.winner(route).is_some_and(|rule| rule.pattern() == pattern)
    });
    by_it.map(|route| (route.caller_service().into(), route.callee_service().into())).collect()
}

fn worst_over(graph: &Graph, ends: &HashSet<Ends>) -> Option<v1::ChainBound> {
    worst::<Sends>(graph, &|edge| ends.contains(&graph.ends(edge))).map(|found| wire::bound(graph, &found))
}
