//! Locks that a panic of another task does not end: what they guard is valid after each statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
