//! Damper inside a service: tower layers that carry out its retry policies.
//!
//! Operators say in the control plane which calls are retried, how often and when not; a service only takes
//! two layers into use. This is all it adds:
//!
//! ```no_run
//! use damper_sdk::{Damper, Options};
//! use tonic::transport::{Channel, Server};
//! # use tonic_health::pb::health_client::HealthClient as InventoryClient;
//! # fn orders_server<T>(_: T) -> tonic::service::Routes { unimplemented!() }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let damper = Damper::connect(Options::new(["http://127.0.0.1:7600"]).service("orders"))?;
//!
//! // Each channel, with the name by which the service behind it calls itself.
//! let channel = Channel::from_static("http://127.0.0.1:7702").connect_lazy();
//! let inventory = InventoryClient::new(damper.client_layer("inventory")?.layer(channel));
//!
//! // The server; Damper's layer first, so that it is the outermost.
//! Server::builder()
//!     .layer(damper.server_layer())
//! #   .add_routes(orders_server(inventory))
//!     // .add_service(OrdersServer::new(Orders { inventory }))
//!     .serve("127.0.0.1:7701".parse()?)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Damper::connect`] never waits. Without a control plane a service works as if Damper were not there, or
//!   by the last rules it knew.
//! - A control plane elsewhere is reached by TLS and shown a token: `https://` endpoints (cargo feature `tls`, on unless
//!   turned off) with [`Options::ca_file`] and [`Options::token_file`], or the same by variables, see [`Options`].
//!   Of several replicas another one is asked as soon as one ends the stream or can not be reached.
//! - [`ClientLayer`] sends, repeats and ends calls as the rules say, counts what became of them, and gives the
//!   application its own answer, unchanged. Where no rule applies it costs no allocation, if the channel is ready, and
//!   keeps nothing.
//! - [`ServerLayer`] gives each request a [`Context`]: calls made in serving it keep within its deadline, are
//!   not retried where a layer above retries, and tell the layers above when retries are of no use. Without it
//!   calls are still governed, but every layer of a chain decides for itself. It also counts who sends requests
//!   again, and refuses repeats beyond the limit that the service's owner has set.
//! - A spawned task leaves the context behind, unless by [`spawn`] or [`Context::scope`].
//! - Each call under a rule and each of its attempts is a `tracing` span (target `damper`). With the cargo
//!   feature `metrics` counters and histograms go to the recorder of the process, see [`metrics`].
//! - [`Damper::fixed`] and [`Damper::off`] need no control plane: they are for tests.
//! - [`balanced`] makes a channel that knows its endpoints: a retry goes to another one, and one that fails alone is
//!   ejected for a while.
//! - [`ClientLayer::external`] and [`ServerLayer::edge`] mark the border of the services that trust each other.
//!
//! Nothing is decided in this crate: it drives `damper_core`, where every rule and its reason is.

mod aside;
pub mod balance;
mod client;
mod clock;
mod context;
mod control;
mod damper;
mod failures;
mod headers;
mod identity;
mod kills;
pub mod metrics;
mod names;
mod options;
mod routes;
mod server;
mod turns;
mod waits;

pub use balance::{Balanced, balanced};
pub use client::{BoxError, ClientLayer, ClientService, ResponseBody, ResponseFuture};
pub use context::{Context, Scope, spawn};
pub use control::{NotReady, Source, Status};
pub use damper::Damper;
pub use damper_core::chain::Repeater;
pub use damper_core::repeat_limit::Served;
pub use damper_core::{Code, Counters, Ending, Fate, Faults, Kill, Mode};
pub use options::Options;
pub use server::{ServerBody, ServerFuture, ServerLayer, ServerService};

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use control::fuzzing;

// The examples of the guide are compiled and run as tests.
#[cfg(all(doctest, feature = "manifest"))]
#[doc = include_str!("../../docs/testing.md")]
mod testing {}

#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../../docs/balanced.md")]
mod balanced {}

#[cfg(test)]
mod scenarios;
