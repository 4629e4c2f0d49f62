//! The limit of attempts along a chain: a write that raises a chain above it is rejected unless forced.
//!
//! The check compares the snapshot with and without the write, edge by edge. The write raises a chain if the
//! worst chain through an edge is above the limit and worse than before. A write that raises nothing is never
//! rejected, since it may be the repair. A repair of one chain may not make another one worse.
//!
//! Not checked: routes without reports, routes that are not counted one by one, and two concurrent writes
//! together. Only routes that match a changed pattern can change, so there is no check if none is known.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use damper_core::chain::bound::Sends;
use damper_core::lint::codes::CHAIN_ABOVE_LIMIT;
use damper_core::{Faults, Pattern};
use damper_proto::v1;
use damper_store::writer::ProposedEdit;
use prost::Message as _;

use crate::graph::edge_bounds::through;
use crate::graph::edges::{Ends, Graph};
use crate::graph::wire;
use crate::graph::worst_path::worst;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::amplification::{AmplificationChange, amplified};
use crate::write::chain_comparison::ChainComparison;
use crate::write::findings;

/// Above this number, patterns are looked up by the candidates of a route instead of one by one.
const MAX_LINEAR_PATTERNS: usize = 24;
/// The most chains that are reported for one write.
const MAX_CHAINS: usize = 8;

/// The result of the check of a write along the chain.
#[derive(Debug, Default)]
pub(crate) struct ChainCheck {
    /// Chains above the limit, each with a changed rule or guard that affects it.
    above: Vec<(ResourceKey, v1::Finding)>,
    /// True if the write raises these chains.
    raised: bool,
}

impl ChainCheck {
    /// Errors if the write raises a chain above the limit and is not forced. `path` returns the path of a
    /// rule or guard in the request.
    pub(crate) fn permit(
        &self,
        options: &v1::WriteOptions,
        path: impl Fn(&ResourceKey) -> String,
    ) -> Result<(), Faults> {
        let mut faults = Faults::none();
        if self.raised && !options.force {
            for (subject, finding) in &self.above {
                let problem = format!(
                    "{}; override it with `force` (--force on the command line) and a reason",
                    finding.message
                );
                faults.add(path(subject), problem);
            }
        }
        faults.or(())
    }

    /// Returns the findings about this rule or guard.
    pub(crate) fn findings_of(&self, subject: &ResourceKey) -> Vec<v1::Finding> {
        let about = self.above.iter().filter(|(about, _)| about == subject);
        about.map(|(_, finding)| finding.clone()).collect()
    }
}

/// Checks the snapshot that edits would make.
pub(crate) async fn check(
    writes: &Arc<Writes>,
    before: &Arc<Snapshot>,
    edits: &[ProposedEdit],
) -> Result<ChainCheck, ApiError> {
    if !may_raise(writes, edits) {
        return Ok(ChainCheck::default());
    }
    compare(writes, before, edits, check_edges).await
}

/// Checks one edit, and returns the change of the amplification if it edits a rule.
pub(crate) async fn check_edit(
    writes: &Arc<Writes>,
    before: &Arc<Snapshot>,
    edit: &ProposedEdit,
) -> Result<(ChainCheck, Option<AmplificationChange>), ApiError> {
    let both = |write: &ChainComparison<'_>| {
        let check =
            if may_raise(write.writes, write.edits) { check_edges(write) } else { ChainCheck::default() };
        (check, amplified(write))
    };
    compare(writes, before, std::slice::from_ref(edit), both).await
}

/// Runs a comparison off the runtime, since it looks up thousands of routes.
async fn compare<T: Send + 'static>(
    writes: &Arc<Writes>,
    before: &Arc<Snapshot>,
    edits: &[ProposedEdit],
    work: impl FnOnce(&ChainComparison<'_>) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let (writes, before, edits) = (writes.clone(), before.clone(), edits.to_vec());
    let done = tokio::task::spawn_blocking(move || work(&ChainComparison::new(&writes, &before, &edits)));
    done.await.map_err(|_| ApiError::unavailable("this server of the control plane is stopping"))
}

fn may_raise(writes: &Writes, edits: &[ProposedEdit]) -> bool {
    !writes.fleet.stats.is_empty() && !edits.iter().all(raises_nothing)
}

/// True if no route needs to be looked up: the edit enforces no retries, or is not about a rule or guard.
fn raises_nothing(edit: &ProposedEdit) -> bool {
    let Some(ResourceKey::Rule(_)) = ResourceKey::of_key(&edit.key) else {
        return !matches!(ResourceKey::of_key(&edit.key), Some(ResourceKey::Guard(_)));
    };
    let rule = edit.value.as_ref().and_then(|value| v1::Rule::decode(value.clone()).ok());
    rule.and_then(|rule| rule.policy).is_some_and(|policy| policy.mode() != v1::Mode::Enforce)
}

fn check_edges(write: &ChainComparison<'_>) -> ChainCheck {
    let changed = write.edits.iter().filter_map(|edit| ResourceKey::of_key(&edit.key));
    let changed: Vec<ResourceKey> =
        changed.filter(|subject| matches!(subject, ResourceKey::Rule(_) | ResourceKey::Guard(_))).collect();
    let affected = AffectedEdges::new(write.writes, &changed);
    if affected.0.is_empty() {
        return ChainCheck::default();
    }
    let limit = u64::from(write.writes.limits.max_amplification);
    let now = write.graph_after();
    let after = through(now);
    if after.iter().all(|sends| *sends <= limit) {
        return ChainCheck::default();
    }
    let earlier = through(write.graph_before());
    let raised = raised(&after, &earlier, limit);
    let is_raised = !raised.is_empty();
    let chains: Vec<v1::ChainBound> = if is_raised {
        chains_of(now, raised)
    } else {
        affected.worst_in(now).into_iter().filter(|bound| bound.sends > limit).collect()
    };
    let above = chains.iter().map(|bound| affected.finding(bound, limit, &changed[0])).collect();
    ChainCheck { above, raised: is_raised }
}

/// Returns the edges through which a chain is above the limit and worse than before, the worst first.
fn raised(after: &[u64], before: &[u64], limit: u64) -> Vec<usize> {
    let mut raised: Vec<usize> =
        (0..after.len()).filter(|edge| after[*edge] > limit && after[*edge] > before[*edge]).collect();
    raised.sort_by_key(|edge| Reverse(after[*edge]));
    raised
}

/// Returns the worst chains through these edges, each edge in one of them.
fn chains_of(graph: &Graph, edges: Vec<usize>) -> Vec<v1::ChainBound> {
    let mut covered = vec![false; graph.edges.len()];
    let mut chains = Vec::new();
    for edge in edges {
        if covered[edge] || chains.len() == MAX_CHAINS {
            continue;
        }
        let Some(found) = worst::<Sends>(graph, &|other| other == edge) else { continue };
        found.path.iter().for_each(|edge| covered[*edge] = true);
        chains.push(wire::bound(graph, &found));
    }
    chains
}

/// The edges whose routes a write can change, each with a rule or guard that matches it.
struct AffectedEdges(HashMap<Ends, ResourceKey>);

impl AffectedEdges {
    fn new(writes: &Writes, changed: &[ResourceKey]) -> Self {
        let mut affected = Self(HashMap::new());
        let many: HashMap<&Pattern, &ResourceKey> = if changed.len() > MAX_LINEAR_PATTERNS {
            changed.iter().filter_map(|subject| Some((subject.pattern()?, subject))).collect()
        } else {
            HashMap::new()
        };
        for route in writes.fleet.stats.keys() {
            let by = if many.is_empty() {
                let patterns = changed.iter().filter_map(|subject| Some((subject.pattern()?, subject)));
                let matching = patterns.filter(|(pattern, _)| pattern.matches(&route));
                matching.max_by_key(|(pattern, _)| pattern.exactness()).map(|(_, subject)| subject)
            } else {
                Pattern::candidates(&route).find_map(|pattern| many.get(&pattern).copied())
            };
            if let Some(subject) = by {
                let ends = (route.caller_service().into(), route.callee_service().into());
                affected.0.entry(ends).or_insert_with(|| subject.clone());
            }
        }
        affected
    }

    /// Returns the worst chain through an affected edge with retries.
    fn worst_in(&self, graph: &Graph) -> Option<v1::ChainBound> {
        let wanted =
            |edge: usize| graph.edges[edge].hops.max_attempts() > 1 && self.0.contains_key(&graph.ends(edge));
        worst::<Sends>(graph, &wanted).map(|found| wire::bound(graph, &found))
    }

    /// Returns the finding for a chain above the limit; `any` is its subject if no affected edge is on the
    /// chain.
    fn finding(&self, bound: &v1::ChainBound, limit: u64, any: &ResourceKey) -> (ResourceKey, v1::Finding) {
        let words = (wire::route_text(bound), wire::multiplying(bound));
        let message = format!("{}, more than the limit of {limit}{}", words.0, words.1);
        let subject = self.cause(bound).unwrap_or_else(|| any.clone());
        let field = if matches!(subject, ResourceKey::Guard(_)) { "ceiling" } else { "policy" };
        let finding = findings::finding(CHAIN_ABOVE_LIMIT, &subject.words(), field, message);
        (subject, finding)
    }

    /// Returns the changed subject on the hop with the most attempts, the last one if several have as many.
    fn cause(&self, bound: &v1::ChainBound) -> Option<ResourceKey> {
        let mut hops: Vec<&v1::Hop> = bound.hops.iter().rev().collect();
        hops.sort_by_key(|hop| std::cmp::Reverse(hop.max_attempts));
        hops.into_iter().find_map(|hop| {
            let ends = (hop.caller_service.as_str().into(), hop.callee_service.as_str().into());
            self.0.get(&ends).cloned()
        })
    }
}
