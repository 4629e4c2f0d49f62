//! The client layer: a tower middleware around a channel to one callee.
//!
//! ```text
//! layer -> service -> response_future (until the answer begins) -> response_body (until it ends)
//!                          |  one `attempt` or several                |
//!                          +- calling: active_call, the engine's Call +
//! ```
//!
//! `requests` makes the request of each attempt, `replay` keeps the body for it, `verdict` reads what came of
//! it, `held` keeps an answer back until its status is known,
//! `hang_up` ends a request that is still being sent, `own_answer` is what the engine answers itself,
//! `timer` wakes, `telemetry` tells, `trail` keeps what is reported of a call that does not end well, with the
//! `cause` of each failure. Every decision is a step of `damper_core::Call`.

mod active_call;
mod attempt;
mod calling;
mod cause;
mod hang_up;
mod held;
mod layer;
mod own_answer;
pub(crate) mod replay;
mod requests;
mod response_body;
mod response_future;
mod service;
mod telemetry;
mod timer;
mod trail;
mod verdict;

pub use layer::ClientLayer;
pub use response_body::ResponseBody;
pub use response_future::ResponseFuture;
pub use service::ClientService;
pub use verdict::BoxError;
