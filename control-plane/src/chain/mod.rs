//! The graph of services: who calls whom, and what repeating comes to along the way.
//!
//! Edges are the routes seen in reports, put together by caller and callee. How often an edge can send is what the
//! rules in force on its routes allow, guards included; the formula along a path is the engine's
//! ([`damper_core::chain::bound`]). The graph is made for each question: a table that is only tried has its own.
//!
//! - `graph`: edges with figures and bounds. - `search`: the worst path. - `through`: the worst of every edge. - `limit`: refuses writes that raise it
//!   above the server's limit. - `get`: `Fleet.GetChain`. - `told`: paths on the wire and in words.

mod get;
mod graph;
mod limit;
mod search;
mod through;
mod told;

pub(crate) use self::get::get;
pub(crate) use self::graph::Graph;
pub(crate) use self::limit::{Judged, judge};
pub(crate) use self::told::bound_through;
