//! The limit along the chain: a write that raises the worst chain above it is refused, unless it is forced.
//!
//! Judged is the table as it would be. Only the routes that a changed pattern is for can change, so the work is
//! small where none of them has been seen. The worst chain through their edges is compared with what it is now: a
//! write that does not raise it is never refused, however bad it is already, since it may be the repair. Routes
//! that nobody has reported yet, or that are not counted one by one, are not judged; nor are two writes at the same
//! moment judged together.

use std::collections::HashMap;
use std::sync::Arc;

use damper_core::chain::bound::Sends;
use damper_core::lint::codes::CHAIN_ABOVE_LIMIT;
use damper_core::{Faults, Pattern};
use damper_proto::v1;

use super::graph::Graph;
use super::search::worst;
use super::told;
use crate::judgement;
use crate::shared::Shared;
use crate::stats::Over;
use crate::table::{Subject, TableView};
use crate::writer::ProposedEdit;

/// More patterns than this are looked up by what can match a route, not one by one.
const FEW: usize = 24;

/// What a write comes to along the chain.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// The chain is above the limit, and this rule or guard, changed by the write, has to do with it.
    pub(crate) above: Option<(Subject, v1::Finding)>,
    /// The write raises it there.
    raised: bool,
}

impl Judged {
    /// Refuses what raises a chain above the limit and is not forced; `path` is where in the request the rule or
    /// guard stands.
    pub(crate) fn permit(
        &self,
        options: &v1::WriteOptions,
        path: impl FnOnce(&Subject) -> String,
    ) -> Result<(), Faults> {
        let mut faults = Faults::none();
        if let Some((subject, finding)) = self.above.as_ref().filter(|_| self.raised && !options.force) {
            let problem = format!("{}; to write it all the same force it, with a reason", finding.message);
            faults.add(path(subject), problem);
        }
        faults.or(())
    }

    /// The finding, where it is about this rule or guard.
    pub(crate) fn finding_of(&self, subject: &Subject) -> Option<v1::Finding> {
        self.above.as_ref().filter(|(about, _)| about == subject).map(|(_, finding)| finding.clone())
    }
}

/// Judges edits by the table that they would make.
pub(crate) fn judge(shared: &Shared, before: &Arc<TableView>, edits: &[ProposedEdit]) -> Judged {
    let changed = edits.iter().filter_map(|edit| Subject::of_key(&edit.key));
    let changed: Vec<Subject> = changed.filter(|subject| !matches!(subject, Subject::Kill(_))).collect();
    let touched = Touched::of(shared, &changed);
    if touched.0.is_empty() {
        return Judged::default();
    }
    let after = before.tried(edits);
    let over = Over::default();
    let now = Graph::of(shared, over, before, &after, None);
    let Some((sends, bound)) = touched.worst_in(&now) else { return Judged::default() };
    let limit = u64::from(shared.settings.max_amplification.sends());
    if sends <= limit {
        return Judged::default();
    }
    let then = Graph::of(shared, over, before, before, None);
    let raised = touched.worst_in(&then).is_none_or(|(before, _)| sends > before);
    let message =
        format!("{}, more than the limit of {limit}{}", told::in_words(&bound), told::multiplying(&bound));
    let subject = touched.to_blame(&bound).unwrap_or_else(|| changed[0].clone());
    let field = if matches!(subject, Subject::Guard(_)) { "ceiling" } else { "policy" };
    let finding = judgement::finding(CHAIN_ABOVE_LIMIT, &subject.pattern().to_string(), field, message);
    Judged { above: Some((subject, finding)), raised }
}

/// Caller and callee.
type Ends = (Arc<str>, Arc<str>);

/// The edges whose routes a write can change, and a rule or guard that is for each.
struct Touched(HashMap<Ends, Subject>);

impl Touched {
    fn of(shared: &Shared, changed: &[Subject]) -> Self {
        let mut touched = Self(HashMap::new());
        let many: HashMap<&Pattern, &Subject> = if changed.len() > FEW {
            changed.iter().map(|subject| (subject.pattern(), subject)).collect()
        } else {
            HashMap::new()
        };
        for route in shared.stats.keys() {
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
    fn worst_in(&self, graph: &Graph) -> Option<(u64, v1::ChainBound)> {
        let wanted = |edge: usize| {
            let edge = &graph.edges[edge];
            let ends = (graph.services[edge.caller].clone(), graph.services[edge.callee].clone());
            edge.hops.max_attempts() > 1 && self.0.contains_key(&ends)
        };
        let found = worst::<Sends>(graph, &wanted)?;
        Some((found.burden.all(), told::bound(graph, &found)))
    }

    /// What was changed on the chain, the hop with most attempts first, of several the last.
    fn to_blame(&self, bound: &v1::ChainBound) -> Option<Subject> {
        let mut hops: Vec<&v1::Hop> = bound.hops.iter().rev().collect();
        hops.sort_by_key(|hop| std::cmp::Reverse(hop.max_attempts));
        hops.into_iter().find_map(|hop| {
            let ends = (hop.caller_service.as_str().into(), hop.callee_service.as_str().into());
            self.0.get(&ends).cloned()
        })
    }
}
