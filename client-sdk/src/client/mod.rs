//! The client layer: a tower middleware around a channel to one callee.
//!
//! ```text
//! layer -> service -+-> passing: no rule, the request goes on as it is -------+-> response_body
//!                   +-> governed: one `attempt` or several, until one begins --+   (until it ends)
//!                         calling: active_call, the engine's Call
//! ```
//!
//! `response_future` is either, `begun` the same once the answer has begun, `sending` a request on its way.
//! `requests` makes the request of each attempt, `replay` keeps the body for it, `verdict` reads what came of it,
//! `held` keeps an answer back until its status is known, `hang_up` ends a request that is still being sent,
//! `own_answer` is what the engine answers itself, `timer` wakes, `telemetry` tells, `trail` keeps what is reported of
//! a call that does not end well, with the `cause` of each failure. Every decision is a step of `damper_core::Call`.

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
