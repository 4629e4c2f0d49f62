//! The server layer: tower middleware around all services of a process.
//!
//! Reads flags and deadline of a request into a [`Context`](crate::Context) and runs the handler and response
//! body in it. If a call made in serving the request has marked the context, an error response carries the
//! flag to the caller. A retry beyond the method's limit is rejected without running the handler. It must be
//! the outermost layer: a layer that moves work to another task, such as a `Buffer`, loses the context.

mod body;
mod future;
mod layer;
mod reply;
mod service;

pub use body::ServerBody;
pub use future::ServerFuture;
pub use layer::ServerLayer;
pub use service::ServerService;
