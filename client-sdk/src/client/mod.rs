//! The client layer.

pub(crate) mod replay;
