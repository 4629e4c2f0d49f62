//! The server layer: a tower middleware around all services of a process.
//!
//! It reads the request's flags and deadline into a [`Context`](crate::Context), runs the handler and polls
//! the response body inside it, and sends the flag up with an error answer if a call made in serving the
//! request has marked the context. A repeat that is one too many for the method is answered without running
//! the handler. It must be the outermost layer, because a layer that moves the work to
//! another task (a `Buffer`) loses the context.

mod body;
mod future;
mod layer;
mod reply;
mod served;
mod service;

pub use body::ServerBody;
pub use future::ServerFuture;
pub use layer::ServerLayer;
pub(crate) use served::ServedMethods;
pub use service::ServerService;
