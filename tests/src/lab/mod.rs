//! The chain lab: chains of real services under faults, to see what each way of repeating calls does to them.
//!
//! Every layer is a process of its own with a tonic server on loopback ([`layer`] is what runs in it), every request
//! comes from an open-loop load ([`load`]), and what is counted is what **arrives**: each layer books each request
//! that reaches it by the number that the load gave it, so nothing rests on what anybody says to have sent.
//! In place of the load and the top there may be a [`fleet`]: hundreds of small callers ([`caller`]) of one callee.
//! [`scenario`] plays one fault against one [`strategy`] on one chain, [`simulated`] the same in virtual time;
//! [`figures`] makes numbers of what happened.
//! The binary `lab` runs the matrix and draws it, [`results`] is what it writes, [`targets`] what is asked of that;
//! tests run single scenarios.
//! [`languages`] has a chain of its own, whose services are not all in Rust.

pub mod caller;
pub mod chain;
pub mod fault;
pub mod figures;
pub mod fleet;
pub mod go;
pub mod languages;
pub mod layer;
pub mod load;
mod process;
pub mod results;
pub mod scenario;
pub mod simulated;
mod station;
pub mod strategy;
mod stub;
pub mod targets;
