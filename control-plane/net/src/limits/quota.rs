//! Quota of concurrent uses per name.
//!
//! A name without a use takes no memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Clones share the counts.
#[derive(Clone)]
pub(super) struct InFlightQuota {
    most: usize,
    held: Arc<Mutex<HashMap<String, usize>>>,
}

impl InFlightQuota {
    pub(super) fn new(most: usize) -> Self {
        Self { most, held: Arc::default() }
    }

    /// Takes one use of this name, held until the permit is dropped; `None` at the limit.
    pub(super) fn take(&self, name: &str) -> Option<QuotaPermit> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(name.to_owned()).or_default();
        if *count >= self.most {
            // A limit of 0 must leave no entry.
            if *count == 0 {
                held.remove(name);
            }
            return None;
        }
        *count += 1;
        Some(QuotaPermit { name: name.to_owned(), tally: self.clone() })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.lock().unwrap().is_empty()
    }
}

/// Permit of one use.
pub struct QuotaPermit {
    name: String,
    tally: InFlightQuota,
}

impl fmt::Debug for QuotaPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.name).finish()
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut held = self.tally.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.name);
            }
        }
    }
}
