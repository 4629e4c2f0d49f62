//! The gates an extra attempt must pass at the caller, and the retry limit of the callee.

pub mod breaker;
pub mod budget;
pub mod circuit;
pub(crate) mod credit;
mod failure_streak;
pub mod repeat_limit;
