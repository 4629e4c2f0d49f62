//! Listeners, TLS and limits of a server that speaks gRPC, gRPC-Web and HTTP on one port.
//!
//! [`connection`] accepts connections and enforces their deadlines, [`tls`] loads and reloads certificates,
//! [`limits`] bounds connections, requests and bytes per identity. The crate knows nothing of rules: which
//! RPC may last how long is given by [`connection::RequestTimeouts`], who a client is by the server's
//! authentication.

pub mod connection;
mod counters;
pub mod limits;
pub mod tls;

pub use counters::Counters;
