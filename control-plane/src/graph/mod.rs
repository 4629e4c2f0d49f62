//! The call graph of services, and the amplification along its paths.
//!
//! Edges are the reported routes, grouped by caller and callee. The bound of an edge follows from the rules
//! and guards in force on its routes; the formula along a path is [`damper_core::chain::bound`]. The graph is
//! made for each request, because a preview has its own snapshot.
//!
//! - `edges`: edges with rates and bounds
//! - `worst_path`: the worst path
//! - `edge_bounds`: the worst path of every edge
//! - `wire`: messages and text

pub(crate) mod edge_bounds;
pub(crate) mod edges;
pub(crate) mod wire;
pub(crate) mod worst_path;

pub(crate) use crate::graph::edges::Graph;
pub(crate) use crate::graph::wire::{bound_through, hop_bound};
