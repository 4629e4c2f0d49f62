//! A write as the chain sees it: who calls whom, with the rules as they are and as it would leave them.
//!
//! Each of the two graphs is made when it is first asked for, once for all that is said of the write.

use std::cell::OnceCell;
use std::sync::Arc;

use crate::graph::edges::{Graph, GraphInput};
use crate::state::snapshot::Snapshot;
use crate::stats::rate_window::RateWindow;
use crate::write::Writes;
use damper_store::writer::ProposedEdit;

/// A write that is judged.
pub(crate) struct ChainComparison<'a> {
    pub(crate) writes: &'a Writes,
    pub(crate) edits: &'a [ProposedEdit],
    pub(crate) before: &'a Arc<Snapshot>,
    pub(crate) after: Snapshot,
    seen: OnceCell<GraphInput>,
    graph_before: OnceCell<Graph>,
    graph_after: OnceCell<Graph>,
}

impl<'a> ChainComparison<'a> {
    pub(crate) fn of(writes: &'a Writes, before: &'a Arc<Snapshot>, edits: &'a [ProposedEdit]) -> Self {
        Self {
            writes,
            edits,
            before,
            after: before.tried(edits),
            seen: OnceCell::new(),
            graph_before: OnceCell::new(),
            graph_after: OnceCell::new(),
        }
    }

    /// The same routes make the same edges in the same order, whatever the rules are: an edge has one number in both.
    fn seen(&self) -> &GraphInput {
        self.seen.get_or_init(|| GraphInput::of(&self.writes.fleet, RateWindow::default(), self.before))
    }

    /// With the rules as they are.
    pub(crate) fn graph_before(&self) -> &Graph {
        self.graph_before.get_or_init(|| self.seen().graph(self.before))
    }

    /// With the rules as the write would leave them.
    pub(crate) fn graph_after(&self) -> &Graph {
        self.graph_after.get_or_init(|| self.seen().graph(&self.after))
    }
}
