//! The SDK against a scripted control plane over real sockets: what it says, what it obeys, what it survives.
//!
//! Which rule is in force is seen by the attempts that a failing call makes. Tests that are about time run on
//! a paused clock, which moves only when nothing is left to do.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not know as such")]

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
