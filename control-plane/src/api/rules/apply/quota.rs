//! How much of sets there may be that are not written yet: in all, and of one identity.
//!
//! A set is held from its first change to its end, and whoever sends it decides how long that takes. So the bytes are
//! counted over all sets at once, and who is alone can not have all of them. What does not fit is refused at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::state::error::ApiError;
use damper_net::limits::Limit;

/// Sets of the largest size that there is room for.
const LARGEST_SETS: usize = 2;
/// The most sets of one identity at a time.
const MAX_OPEN: usize = 16;

/// What all sets have that are not written yet.
#[derive(Debug)]
pub(crate) struct ApplyQuota {
    /// The most bytes of one set, which is also the most of one identity.
    largest: usize,
    held: Mutex<ApplyUsage>,
}

#[derive(Debug, Default)]
struct ApplyUsage {
    bytes: usize,
    /// Open sets and their bytes.
    by: HashMap<String, (usize, usize)>,
}

/// The part of one set; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct ApplyReservation<'r> {
    rooms: &'r ApplyQuota,
    identity: String,
    bytes: usize,
}

impl ApplyQuota {
    /// For sets of up to so many bytes.
    pub(crate) fn new(largest: usize) -> Self {
        Self { largest, held: Mutex::default() }
    }

    /// Room for one more set, which is empty yet.
    pub(crate) fn open(&self, identity: String) -> Result<ApplyReservation<'_>, ApiError> {
        let mut held = self.held();
        let (open, _) = held.by.entry(identity.clone()).or_default();
        if *open >= MAX_OPEN {
            return Err(too_much(format!(
                "{identity} has {MAX_OPEN} sets underway, and no more are allowed"
            )));
        }
        *open += 1;
        drop(held);
        Ok(ApplyReservation { rooms: self, identity, bytes: 0 })
    }

    fn held(&self) -> MutexGuard<'_, ApplyUsage> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApplyReservation<'_> {
    /// The set has grown.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let (mut held, largest) = (self.rooms.held(), self.rooms.largest);
        let all = held.bytes.saturating_add(bytes);
        let Some((_, own)) = held.by.get_mut(&self.identity) else { return Ok(()) };
        if own.saturating_add(bytes) > largest {
            let text =
                format!("the sets of {} that are underway have more than {largest} bytes", self.identity);
            return Err(too_much(text));
        }
        if all > largest.saturating_mul(LARGEST_SETS) {
            return Err(too_much("sets of others are underway that leave no room for this one".to_owned()));
        }
        *own += bytes;
        held.bytes = all;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for ApplyReservation<'_> {
    fn drop(&mut self) {
        let mut held = self.rooms.held();
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
    fn nobody_has_more_than_one_largest_set_and_all_have_two() {
        let rooms = ApplyQuota::new(100);
        let mut anns = rooms.open("ann".to_owned()).unwrap();
        let mut anns_other = rooms.open("ann".to_owned()).unwrap();
        anns.grow(60).unwrap();
        assert!(anns_other.grow(41).is_err());
        anns_other.grow(40).unwrap();
        let mut bobs = rooms.open("bob".to_owned()).unwrap();
        bobs.grow(100).unwrap();
        let mut carls = rooms.open("carl".to_owned()).unwrap();
        assert!(carls.grow(1).is_err());
        drop(anns);
        carls.grow(60).unwrap();
        assert!(carls.grow(1).is_err());
        drop((anns_other, bobs, carls));
        let held = rooms.held();
        assert!(held.bytes == 0 && held.by.is_empty(), "{held:?}");
    }

    #[test]
    fn one_identity_has_only_so_many_sets_at_a_time() {
        let rooms = ApplyQuota::new(100);
        let mut open: Vec<_> = (0..MAX_OPEN).map(|_| rooms.open("ann".to_owned()).unwrap()).collect();
        assert!(rooms.open("ann".to_owned()).is_err());
        rooms.open("bob".to_owned()).unwrap();
        open.pop();
        rooms.open("ann".to_owned()).unwrap();
    }
}
