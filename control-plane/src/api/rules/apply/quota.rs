//! Limits the bytes of sets that are not written yet, in total and per identity.
//!
//! A set stays in memory from its first change to its end, and the sender decides how long that takes. So the
//! bytes of all sets are counted together, and one identity cannot use up the limit. A set beyond the limit
//! is rejected at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use damper_net::limits::Limit;

use crate::state::error::ApiError;

/// Limit of all sets, in sets of the largest size.
pub(crate) const LARGEST_SETS: usize = 2;
/// The most sets of one identity at a time.
const MAX_OPEN: usize = 16;

/// The usage of all sets that are not written yet.
#[derive(Debug)]
pub(crate) struct ApplyQuota {
    /// The most bytes of one set, and of all sets of one identity.
    largest: usize,
    held: Mutex<ApplyUsage>,
}

#[derive(Debug, Default)]
struct ApplyUsage {
    bytes: usize,
    /// Open sets and their bytes.
    by: HashMap<String, (usize, usize)>,
}

/// The share of one set, released on drop.
#[derive(Debug)]
pub(crate) struct ApplyReservation<'r> {
    quota: &'r ApplyQuota,
    identity: String,
    bytes: usize,
}

impl ApplyQuota {
    /// Creates a quota for sets of up to `largest` bytes.
    pub(crate) fn new(largest: usize) -> Self {
        Self { largest, held: Mutex::default() }
    }

    /// Reserves room for one more set, empty at first.
    pub(crate) fn open(&self, identity: String) -> Result<ApplyReservation<'_>, ApiError> {
        let mut held = self.held();
        let (open, _) = held.by.entry(identity.clone()).or_default();
        if *open >= MAX_OPEN {
            return Err(too_much(format!(
                "{identity} has {MAX_OPEN} open sets, the limit; try again when one is finished"
            )));
        }
        *open += 1;
        drop(held);
        Ok(ApplyReservation { quota: self, identity, bytes: 0 })
    }

    fn held(&self) -> MutexGuard<'_, ApplyUsage> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApplyReservation<'_> {
    /// Adds bytes to the set.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let (mut held, largest) = (self.quota.held(), self.quota.largest);
        let all = held.bytes.saturating_add(bytes);
        let Some((_, own)) = held.by.get_mut(&self.identity) else { return Ok(()) };
        if own.saturating_add(bytes) > largest {
            let text = format!("the open sets of {} exceed {largest} bytes; try again later", self.identity);
            return Err(too_much(text));
        }
        if all > largest.saturating_mul(LARGEST_SETS) {
            return Err(too_much("open sets of other callers leave no room; try again later".to_owned()));
        }
        *own += bytes;
        held.bytes = all;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for ApplyReservation<'_> {
    fn drop(&mut self) {
        let mut held = self.quota.held();
        held.bytes -= self.bytes;
        let Some((open, own)) = held.by.get_mut(&self.identity) else { return };
        *open -= 1;
        *own -= self.bytes;
        if *open == 0 {
            held.by.remove(&self.identity);
        }
    }
}

fn too_much(text: String) -> ApiError {
    ApiError::too_large(Limit::ApplyBytes, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_limited_to_one_largest_set_and_all_to_two() {
        let quota = ApplyQuota::new(100);
        let mut first_of_ann = quota.open("ann".to_owned()).unwrap();
        let mut second_of_ann = quota.open("ann".to_owned()).unwrap();
        first_of_ann.grow(60).unwrap();
        assert!(second_of_ann.grow(41).is_err());
        second_of_ann.grow(40).unwrap();
        let mut of_bob = quota.open("bob".to_owned()).unwrap();
        of_bob.grow(100).unwrap();
        let mut of_carl = quota.open("carl".to_owned()).unwrap();
        assert!(of_carl.grow(1).is_err());
        drop(first_of_ann);
        of_carl.grow(60).unwrap();
        assert!(of_carl.grow(1).is_err());
        drop((second_of_ann, of_bob, of_carl));
        let held = quota.held();
        assert!(held.bytes == 0 && held.by.is_empty(), "{held:?}");
    }

    #[test]
    fn identity_is_limited_to_16_open_sets() {
        let quota = ApplyQuota::new(100);
        let mut open: Vec<_> = (0..MAX_OPEN).map(|_| quota.open("ann".to_owned()).unwrap()).collect();
        assert!(quota.open("ann".to_owned()).is_err());
        quota.open("bob".to_owned()).unwrap();
        open.pop();
        quota.open("ann".to_owned()).unwrap();
    }
}
