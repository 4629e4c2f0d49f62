//! The client layer: tower middleware around a channel to one callee.
//!
//! ```text
//! layer -> service -+-> passthrough: no rule, the request is forwarded --------+-> response body
//!                   +-> governed: one or more attempts, until one responds ----+   (until it ends)
//!                         slot: state of the call, around the engine's `Call`
//! ```
//!
//! `future` is either path, `request` builds the request of each attempt, `replay` buffers its body.
//! `outcome` reads what an attempt meant, `telemetry` records spans, times and failed calls. Every decision
//! is a step of `damper_core::Call`.

mod active_call;
mod attempt;
mod begun;
mod calling;
mod cause;
mod governed;
mod hang_up;
mod held;
mod layer;
mod own_answer;
mod passing;
pub(crate) mod replay;
mod requests;
mod response_body;
mod response_future;
mod sending;
mod service;
mod telemetry;
mod timer;
mod trail;
pub(crate) mod verdict;

pub use layer::ClientLayer;
pub use response_body::ResponseBody;
pub use response_future::ResponseFuture;
pub use service::ClientService;
pub use verdict::BoxError;
