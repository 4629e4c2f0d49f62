//! Gates of extra attempts at the caller, the circuit breaker, and the retry limit of the callee.

pub mod breaker;
pub mod budget;
pub mod circuit;
pub(crate) mod credit;
mod failure_streak;
pub mod repeat_limit;
