//! Tower layers that run Damper's retry policies inside a service.
//!
//! Operators set in the control plane which calls are retried, how often and when not. A service adds two
//! layers:
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
//! # Control plane
//!
//! [`Damper::connect`] never waits. Without a control plane a service works with the last rules that it
//! knows, or as if Damper were absent. [`Options`] sets the replicas; a client whose replica ends the stream
//! or becomes unreachable connects to another one. `https://` endpoints use [`Options::ca_file`] and
//! [`Options::token_file`], or the variables that [`Options`] lists.
//!
//! # Outgoing calls
//!
//! [`ClientLayer`] sends, retries and ends calls as their rules demand, counts how they ended, and returns
//! the callee's response unchanged. Without a rule it allocates nothing if the channel is ready, and buffers
//! nothing.
//!
//! [`CallOptions`] in the extensions of a request limit its call further. [`fate`] returns why a call failed,
//! after which attempts and time:
//!
//! ```
//! use damper_sdk::CallOptions;
//!
//! let mut request = tonic::Request::new(());
//! request.extensions_mut().insert(CallOptions::new().no_retries());
//! # let status = tonic::Status::unavailable("");
//! if let Some(report) = damper_sdk::fate(&status) {
//!     println!("{} after {} attempts in {:?}", report.ending, report.attempts, report.elapsed);
//! }
//! ```
//!
//! # Served requests
//!
//! [`ServerLayer`] gives each request a [`Context`]. Calls made in serving the request keep its deadline, are
//! not retried if a layer above retries, and inform the layers above when a retry cannot help. Without the
//! server layer calls are still governed, but each service of a chain decides alone. The layer also counts
//! retries by their sender, and blocks those above the limit that the service's owner set.
//!
//! A spawned task loses the context, unless it is spawned by [`spawn`] or [`spawn_blocking`], or runs in
//! [`Context::scope`] or [`Context::sync_scope`].
//!
//! # Other calls
//!
//! [`Damper::operation`] governs any async call, such as a database statement. With the feature `http`,
//! `Damper::http_client` and `Damper::http_server_layer` govern HTTP. [`retry`] is the crate of their
//! handles.
//!
//! # Edge
//!
//! [`ClientLayer::external`] and [`ServerLayer::edge`] mark the border of the services that trust each other.
//!
//! # Durable queues
//!
//! With the feature `queue`, a call that failed can become a job that is finished later: `HandOver` in the
//! extensions of a request. `Damper::jobs` submits other work, and `Damper::worker` does it. See the module
//! `queue`.
//!
//! # Balanced channels
//!
//! [`balanced`] makes a channel that knows its endpoints: a retry goes to another endpoint, and an endpoint
//! that fails alone is ejected for some time.
//!
//! # Traces
//!
//! Each call under a rule, and each of its attempts, is a `tracing` span with the target `damper`.
//!
//! # Tests
//!
//! [`Damper::off`] and [`Damper::fixed`] (feature `manifest`) need no control plane.
//!
//! # Feature flags
//!
//! - `tls`, on by default: `https://` endpoints of [`Options`] and [`balanced`], with rustls and the system's
//!   roots.
//! - `http`: layers for HTTP clients and servers; `reqwest`: also for the requests of reqwest 0.13.
//! - `queue`: durable queues, to submit jobs, to work on them and to hand failed calls over.
//! - `metrics`: counters and histograms for the recorder of the process; [`metrics`] lists them.
//! - `manifest`: [`Damper::fixed`], rules from YAML or JSON.
//!
//! This crate decides nothing: it drives [`damper_core`], which has every rule and its reason.

mod background;
pub mod balance;
mod client;
mod context;
mod control;
mod damper;
mod headers;
#[cfg(feature = "http")]
pub mod http;
pub mod metrics;
mod operation;
mod options;
mod outcome;
#[cfg(feature = "queue")]
pub mod queue;
mod record;
mod routes;
mod server;

pub use balance::{Balanced, balanced};
pub use client::{ClientLayer, ClientService, ResponseBody, ResponseFuture};
#[cfg(feature = "queue")]
pub use client::{HandOver, handed_over};
pub use context::{Context, Scope, spawn, spawn_blocking};
pub use control::{NotReady, Source, Status};
pub use damper::Damper;
pub use damper_core::chain::Repeater;
pub use damper_core::repeat_limit::Served;
pub use damper_core::{CallOptions, Code, Counters, Ending, Fate, Faults, Kill, Mode};
pub use damper_retry as retry;
pub use operation::{BoxOperation, Governed, Operation};
pub use options::Options;
pub use outcome::BoxError;
pub use record::report::{CallReport, fate};
pub use server::{ServerBody, ServerFuture, ServerLayer, ServerService};

/// For the proxy, whose key is a member of the baggage too.
#[cfg(feature = "document")]
#[doc(hidden)]
pub use damper_core::chain::is_named;
/// For the proxy, whose names need no engine to be checked.
#[cfg(feature = "document")]
#[doc(hidden)]
pub use damper_core::key::check_name;
#[cfg(feature = "document")]
#[doc(hidden)]
pub use damper_document as document;
#[doc(hidden)]
pub use headers::has_grpc_type;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use control::fuzzing;

// The examples of the README and the guides are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(doctest, feature = "manifest"))]
#[doc = include_str!("../../docs/testing.md")]
mod testing {}

#[cfg(all(doctest, feature = "reqwest"))]
#[doc = include_str!("../../docs/any-call.md")]
mod any_call {}

#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../../docs/balanced.md")]
mod balanced {}

#[cfg(test)]
mod scenarios;
