//! The limit along the chain: a write that raises a chain above it is refused, unless it is forced.
//!
//! Judged is the table as it would be, by every edge: where the worst chain through one is above the limit and worse
//! than it is now, the write raises it. A write that raises nothing is never refused, however bad it is already,
//! since it may be the repair; one that repairs a chain may not make another one worse. Routes that nobody has
//! reported yet, or that are not counted one by one, are not judged; nor are two writes at the same moment judged
//! together. Only the routes that a changed pattern is for can change, so nothing is done where none has been seen.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use damper_core::chain::bound::Sends;
use damper_core::lint::codes::CHAIN_ABOVE_LIMIT;
use damper_core::{Faults, Pattern};
use damper_proto::v1;
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
use damper_store::writer::ProposedEdit;

/// More patterns than this are looked up by what can match a route, not one by one.
const FEW: usize = 24;
/// So many chains are told of one write.
const CHAINS: usize = 8;

/// What a write comes to along the chain.
#[derive(Debug, Default)]
pub(crate) struct ChainCheck {
    /// Chains above the limit, each with a rule or guard, changed by the write, that has to do with it.
    above: Vec<(ResourceKey, v1::Finding)>,
    /// The write raises them there.
    raised: bool,
}

impl ChainCheck {
    /// Refuses what raises a chain above the limit and is not forced; `path` is where in the request the rule or
    /// guard stands.
    pub(crate) fn permit(
        &self,
        options: &v1::WriteOptions,
        path: impl Fn(&ResourceKey) -> String,
    ) -> Result<(), Faults> {
        let mut faults = Faults::none();
        if self.raised && !options.force {
            for (subject, finding) in &self.above {
                let problem = format!("{}; override it with force and a reason", finding.message);
                faults.add(path(subject), problem);
            }
        }
        faults.or(())
    }

    /// The findings that are about this rule or guard.
    pub(crate) fn findings_of(&self, subject: &ResourceKey) -> Vec<v1::Finding> {
        let about = self.above.iter().filter(|(about, _)| about == subject);
        about.map(|(_, finding)| finding.clone()).collect()
    }
}

/// Judges edits by the table that they would make.
pub(crate) async fn judge(
    writes: &Arc<Writes>,
    before: &Arc<Snapshot>,
    edits: &[ProposedEdit],
) -> Result<ChainCheck, ApiError> {
    if !may_raise(writes, edits) {
        return Ok(ChainCheck::default());
    }
    aside(writes, before, edits, judged).await
}

/// Judges one edit, and tells what it does to what repeating can add, where it is a rule's.
pub(crate) async fn judge_one(
    writes: &Arc<Writes>,
    before: &Arc<Snapshot>,
    edit: &ProposedEdit,
) -> Result<(ChainCheck, Option<AmplificationChange>), ApiError> {
    let both = |write: &ChainComparison<'_>| {
        let judged = if may_raise(write.writes, write.edits) { judged(write) } else { ChainCheck::default() };
        (judged, amplified(write))
    };
    aside(writes, before, std::slice::from_ref(edit), both).await
}

/// Thousands of routes are looked up; that is no work for the threads that serve streams.
async fn aside<T: Send + 'static>(
    writes: &Arc<Writes>,
    before: &Arc<Snapshot>,
    edits: &[ProposedEdit],
    look: impl FnOnce(&ChainComparison<'_>) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let (writes, before, edits) = (writes.clone(), before.clone(), edits.to_vec());
    let looked = tokio::task::spawn_blocking(move || look(&ChainComparison::of(&writes, &before, &edits)));
    looked.await.map_err(|_| ApiError::unavailable("the server is stopping"))
}

fn may_raise(writes: &Writes, edits: &[ProposedEdit]) -> bool {
    !writes.fleet.stats.is_empty() && !edits.iter().all(raises_nothing)
}

/// True where it is plain without a look at any route: what is stored repeats nothing, or is no rule or guard.
fn raises_nothing(edit: &ProposedEdit) -> bool {
    let Some(ResourceKey::Rule(_)) = ResourceKey::of_key(&edit.key) else {
        return matches!(ResourceKey::of_key(&edit.key), None | Some(ResourceKey::Kill(_)));
    };
    let rule = edit.value.as_ref().and_then(|value| v1::Rule::decode(value.clone()).ok());
    rule.and_then(|rule| rule.policy).is_some_and(|policy| policy.mode() != v1::Mode::Enforce)
}

fn judged(write: &ChainComparison<'_>) -> ChainCheck {
    let changed = write.edits.iter().filter_map(|edit| ResourceKey::of_key(&edit.key));
    let changed: Vec<ResourceKey> =
        changed.filter(|subject| !matches!(subject, ResourceKey::Kill(_))).collect();
    let touched = AffectedEdges::of(write.writes, &changed);
    if touched.0.is_empty() {
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
        touched.worst_in(now).into_iter().filter(|bound| bound.sends > limit).collect()
    };
    let above = chains.iter().map(|bound| touched.finding(bound, limit, &changed[0])).collect();
    ChainCheck { above, raised: is_raised }
}

/// The edges through which a chain is above the limit and worse than before, the worst first.
fn raised(after: &[u64], before: &[u64], limit: u64) -> Vec<usize> {
    let mut raised: Vec<usize> =
        (0..after.len()).filter(|edge| after[*edge] > limit && after[*edge] > before[*edge]).collect();
    raised.sort_by_key(|edge| Reverse(after[*edge]));
    raised
}

/// The worst chains through these edges, each edge in one of them.
fn chains_of(graph: &Graph, edges: Vec<usize>) -> Vec<v1::ChainBound> {
    let mut told = vec![false; graph.edges.len()];
    let mut chains = Vec::new();
    for edge in edges {
        if told[edge] || chains.len() == CHAINS {
            continue;
        }
        let Some(found) = worst::<Sends>(graph, &|other| other == edge) else { continue };
        found.path.iter().for_each(|edge| told[*edge] = true);
        chains.push(wire::bound(graph, &found));
    }
    chains
}

/// The edges whose routes a write can change, and a rule or guard that is for each.
struct AffectedEdges(HashMap<Ends, ResourceKey>);

impl AffectedEdges {
    fn of(writes: &Writes, changed: &[ResourceKey]) -> Self {
        let mut touched = Self(HashMap::new());
        let many: HashMap<&Pattern, &ResourceKey> = if changed.len() > FEW {
            changed.iter().map(|subject| (subject.pattern(), subject)).collect()
        } else {
            HashMap::new()
        };
        for route in writes.fleet.stats.keys() {
            let by = if many.is_empty() {
                let matching = changed.iter().filter(|subject| subject.pattern().matches(&route));
                matching.max_by_key(|subject| subject.pattern().exactness())
            } else {
                Pattern::candidates(&route).find_map(|pattern| many.get(&pattern).copied())
            };
            if let Some(subject) = by {
                let ends = (route.caller_service().into(), route.callee_service().into());
                touched.0.entry(ends).or_insert_with(|| subject.clone());
            }
        }
        touched
    }

    /// The worst chain through a touched edge that repeats at all.
    fn worst_in(&self, graph: &Graph) -> Option<v1::ChainBound> {
        let wanted =
            |edge: usize| graph.edges[edge].hops.max_attempts() > 1 && self.0.contains_key(&graph.ends(edge));
        worst::<Sends>(graph, &wanted).map(|found| wire::bound(graph, &found))
    }

    /// A chain above the limit; `any` is what it is about where no touched edge is on it.
    fn finding(&self, bound: &v1::ChainBound, limit: u64, any: &ResourceKey) -> (ResourceKey, v1::Finding) {
        let words = (wire::in_words(bound), wire::multiplying(bound));
        let message = format!("{}, more than the limit of {limit}{}", words.0, words.1);
        let subject = self.to_blame(bound).unwrap_or_else(|| any.clone());
        let field = if matches!(subject, ResourceKey::Guard(_)) { "ceiling" } else { "policy" };
        let finding = findings::finding(CHAIN_ABOVE_LIMIT, &subject.pattern().to_string(), field, message);
        (subject, finding)
    }

    /// What was changed on the chain, the hop with most attempts first, of several the last.
    fn to_blame(&self, bound: &v1::ChainBound) -> Option<ResourceKey> {
        let mut hops: Vec<&v1::Hop> = bound.hops.iter().rev().collect();
        hops.sort_by_key(|hop| std::cmp::Reverse(hop.max_attempts));
        hops.into_iter().find_map(|hop| {
            let ends = (hop.caller_service.as_str().into(), hop.callee_service.as_str().into());
            self.0.get(&ends).cloned()
        })
    }
}
