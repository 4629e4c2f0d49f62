//! Requests kept so that they can be sent again.

use std::sync::atomic::AtomicUsize;

/// The request bytes that all calls of a process keep.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    in_use: AtomicUsize,
}
