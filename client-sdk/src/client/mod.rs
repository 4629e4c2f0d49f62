//! The client layer: tower middleware around a channel to one callee.
//!
//! ```text
//! layer -> service -+-> passthrough: no rule, the request is forwarded --------+-> response body
//!                   +-> governed: one or more attempts, until one responds ----+   (until it ends)
//!                         slot: state of the call on the heap, around the engine's `Call`
//! ```
//!
//! `response_future` is either path until its response begins, `committed` the call that the response body
//! owns from then on. `requests` builds the request of each attempt. `hand_over` lets a failed call become a
//! job. Every decision is a step of `damper_core::Call`.

mod active_call;
mod attempt;
mod body_canceller;
mod committed;
mod governed;
mod hand_over;
mod held_response;
mod in_flight;
mod layer;
mod local_response;
mod passthrough;
mod requests;
mod response_body;
mod response_future;
mod service;
mod slot;

#[cfg(feature = "queue")]
pub use hand_over::{HandOver, handed_over};
#[cfg(feature = "queue")]
pub(crate) use hand_over::{Redelivery, SeenCall};
pub use layer::ClientLayer;
pub use response_body::ResponseBody;
pub use response_future::ResponseFuture;
pub use service::ClientService;
