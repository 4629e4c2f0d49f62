//! Access to a control plane: address, TLS files, token.
//!
//! A crate of its own because the SDK and the command line share these variables and their faults.
//! [`Access::resolve`] checks the settings and reports all faults together. [`Access::open`] reads the files
//! for each connection, so renewed certificates and tokens need no restart. [`problem`] explains rejected
//! certificates. `ServerFiles` are those of a server: the proxy's listener for callers.
//!
//! This crate neither connects nor logs, and none of its texts contains a secret. One task runs each
//! connection.

mod access;
pub mod address;
mod gathered;
mod one_task;
pub mod problem;
#[cfg(feature = "tls")]
mod server;
mod tls;
mod token;

pub use access::{Access, AccessSettings, Opening, Speaker};
pub use gathered::Gathered;
pub use one_task::OneTask;
#[cfg(feature = "tls")]
pub use server::{ServerFiles, ServerPem};
pub use token::Token;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
