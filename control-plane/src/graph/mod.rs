//! The graph of services: who calls whom, and what repeating comes to along the way.
//!
//! Edges are the routes seen in reports, put together by caller and callee. How often an edge can send is what the
//! rules in force on its routes allow, guards included; the formula along a path is the engine's
//! ([`damper_core::chain::bound`]). The graph is made for each question: a table that is only tried has its own.
//!
//! - `graph`: edges with figures and bounds. - `search`: the worst path. - `through`: the worst of every edge.
//! - `write`: the graphs before and after a write. - `limit`: refuses writes that raise a chain above the server's
//!   limit. - `amplified`: what a write of one rule does. - `get`: `Fleet.GetChain`. - `told`: on the wire, in words.

pub(crate) mod edge_bounds;
pub(crate) mod edges;
pub(crate) mod wire;
pub(crate) mod worst_path;

pub(crate) use crate::graph::edges::Graph;
pub(crate) use crate::graph::wire::{bound_through, hop_bound};
