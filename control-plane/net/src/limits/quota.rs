//! How many of something each has at once, up to a bound, until it is given back.
//!
//! Whoever has nothing is forgotten, so that addresses that came once do not stay.

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

    /// One more for this name until what is returned is dropped; none where it has the most already.
    pub(super) fn take(&self, name: &str) -> Option<QuotaPermit> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(name.to_owned()).or_default();
        if *count >= self.most {
            // A bound of nothing leaves nothing behind either.
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

/// One that is counted for a name.
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
