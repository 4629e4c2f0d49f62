//! The call graph before and after a write.
//!
//! Each of the two graphs is built on first use.

use std::cell::OnceCell;
use std::sync::Arc;

use damper_store::writer::ProposedEdit;

use crate::graph::edges::{Graph, GraphInput};
use crate::state::snapshot::Snapshot;
use crate::stats::rate_window::RateWindow;
use crate::write::Writes;

/// A write to be checked, with its snapshots and graphs.
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
    pub(crate) fn new(writes: &'a Writes, before: &'a Arc<Snapshot>, edits: &'a [ProposedEdit]) -> Self {
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

    /// The same routes make the same edges in the same order under any rules, so an edge has one number in
    /// both graphs.
    fn seen(&self) -> &GraphInput {
        self.seen.get_or_init(|| GraphInput::of(&self.writes.fleet, RateWindow::default(), self.before))
    }

    /// Returns the graph with the current rules.
    pub(crate) fn graph_before(&self) -> &Graph {
        self.graph_before.get_or_init(|| self.seen().graph(self.before))
    }

    /// Returns the graph with the rules after the write.
    pub(crate) fn graph_after(&self) -> &Graph {
        self.graph_after.get_or_init(|| self.seen().graph(&self.after))
    }
}
