//! How a control plane is reached: its address, the files that prove both sides, the token that is shown.
//!
//! A crate of its own because the SDK and the command line take the same variables and must say the same about
//! them. [`Access::resolve`] checks what was said, all faults at once; [`Access::open`] reads the files, at every
//! connection attempt, so that a renewed certificate or token is used without a restart; [`problem`] says in words
//! why a peer's certificate, or ours, was not accepted.
//!
//! Nothing here connects or logs, and no text made here holds a secret. What is opened here is run by one task per
//! connection.

mod access;
pub mod address;
mod one_task;
pub mod problem;
mod tls;
mod token;

pub use access::{Access, Opening, Said, Speaker};
pub use one_task::OneTask;
pub use token::Token;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
