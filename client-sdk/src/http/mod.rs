//! HTTP: a layer for clients and a layer for servers, with the chain's flags and the deadline.
//!
//! The route of a request is its HTTP method with the template of its path, `GET:/orders/{id}`, never the
//! path itself: the number of names is bounded. A request is retried only if its HTTP method is idempotent,
//! if it carries `Idempotency-Key`, if its [`CallOptions`](crate::CallOptions) declare it idempotent, or if
//! it was provably never sent. For that a request is copied, so its body must be `Clone`, such as
//! `Full<Bytes>`; reqwest's streams are not copied and sent once.
//!
//! An attempt of a client ends with the headers of the response: its time limits do not cover the body, and a
//! connection that breaks in the body is not retried.
//!
//! HTTP peers are mostly strangers. Flags and deadline are exchanged only with peers inside the system, see
//! [`HttpClientLayer::internal`] and [`HttpServerLayer::internal`].

mod assess;
mod client;
mod layer;
mod message;
mod server;

pub use assess::{ResponseHead, RetryHint, Sent};
pub use client::{HttpAttempts, HttpClient, HttpFuture};
pub use layer::{HttpClientLayer, PathTemplate};
pub use message::{HttpRequest, HttpResponse};
pub use server::{HttpServerBody, HttpServerFuture, HttpServerLayer, HttpServerService};
