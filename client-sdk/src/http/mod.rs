//! HTTP: a layer for clients and a layer for servers, with the chain's flags and the deadline.
//!
//! The route of a request is its HTTP method with the template of its path, `GET:/orders/{id}`, never the
//! path itself: the number of names is bounded. A request is retried only if its HTTP method is idempotent,
//! if it carries `Idempotency-Key`, if its [`CallOptions`](crate::CallOptions) declare it idempotent, or if
//! it was provably never sent.
//!
//! HTTP peers are mostly strangers. Flags and deadline are exchanged only with peers inside the system, see
//! [`HttpClientLayer::internal`] and [`HttpServerLayer::internal`].

mod assess;
mod client;
mod message;
mod server;

pub use assess::Sent;
pub use client::{HttpAttempts, HttpClient, HttpClientLayer, HttpFuture};
pub use message::{HttpRequest, HttpResponse};
pub use server::{HttpServerFuture, HttpServerLayer, HttpServerService};
