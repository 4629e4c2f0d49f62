//! Damper for services that are not written in Rust: a proxy next to a service.
//!
//! ```text
//! caller --> inbound: server layer --> the service, on loopback --> outbound: client layer --> callee
//!                |  remembers the request's context        finds it by its key  |
//!                +-----------------------> context <----------------------------+
//! ```
//!
//! The layers are those of [`damper_sdk`], over raw HTTP/2: no message is read, and every retry rule is in
//! the engine below the SDK. What is new here is how the context of a request crosses a service that does not
//! know Damper: its OpenTelemetry copies a key from the request to its calls, see `context`.

mod admin;
mod config;
mod connect;
mod context;
mod counters;
mod failure;
mod fields;
mod follow;
mod inbound;
mod listen;
mod listeners;
mod lock;
mod names;
mod outbound;
mod proxy;
mod request_body;

pub use admin::Admin;
pub use config::{
    Callee, Config, ConfigError, Connect, ConnectHost, Inbound, InboundTls, Outbound, Peer, ReadConfig, Tls,
};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use connect::fuzzing;
pub use counters::Snapshot;
pub use follow::Follow;
pub use listeners::StartError;
pub use proxy::{Addresses, Proxy};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
