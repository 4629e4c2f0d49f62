//! Damper inside a service: tower layers that carry out its retry policies.

mod client;
mod clock;
mod context;
mod control;
mod damper;
mod headers;
mod identity;
mod options;
mod routes;
mod server;

pub use client::{BoxError, ClientLayer, ClientService, ResponseBody, ResponseFuture};
pub use context::{Context, Scope, spawn};
pub use control::{NotReady, Source, Status};
pub use damper::Damper;
pub use damper_core::{Faults, Mode};
pub use options::Options;
pub use server::{ServerBody, ServerFuture, ServerLayer, ServerService};

#[cfg(test)]
mod scenarios;
