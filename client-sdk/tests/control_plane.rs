//! The SDK with a scripted control plane over real sockets: what it sends, applies and survives.
//!
//! The number of attempts of a failing call shows the rule in force. Tests of timing use a paused clock,
//! which moves only when no task can run.
#![allow(clippy::unwrap_used, reason = "test helpers, which clippy does not recognize")]

#[path = "control_plane/callee.rs"]
mod callee;
#[cfg(feature = "tls")]
#[path = "control_plane/certificates.rs"]
mod certificates;
#[path = "control_plane/disk.rs"]
mod disk;
#[path = "control_plane/goodbye.rs"]
mod goodbye;
#[path = "control_plane/guards.rs"]
mod guards;
#[path = "control_plane/handle.rs"]
mod handle;
#[path = "control_plane/hostile.rs"]
mod hostile;
#[path = "control_plane/kills.rs"]
mod kills;
#[path = "control_plane/overrides.rs"]
mod overrides;
#[path = "control_plane/reconnecting.rs"]
mod reconnecting;
#[path = "control_plane/reports.rs"]
mod reports;
#[path = "control_plane/rules.rs"]
mod rules;
#[path = "control_plane/server.rs"]
mod server;
#[cfg(feature = "tls")]
#[path = "control_plane/tls.rs"]
mod tls;
#[path = "control_plane/tokens.rs"]
mod tokens;
