//! Outcome of an attempt: its verdict for the engine, and its cause for operators.

pub(crate) mod cause;
pub(crate) mod verdict;

pub use verdict::BoxError;
