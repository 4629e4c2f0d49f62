//! Damper inside a service: tower layers that carry out its retry policies.

mod client;
mod clock;
mod context;
mod headers;
mod routes;
mod server;

pub use client::{BoxError, ClientLayer, ClientService, ResponseBody, ResponseFuture};
pub use context::{Context, Scope, spawn};
pub use server::{ServerBody, ServerFuture, ServerLayer, ServerService};
