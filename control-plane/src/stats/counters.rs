//! Counts by a small number, as a sorted list: what is 0 takes no room.
//!
//! A process reports some ten of the sixty counters of a route, and some twenty of its 256 buckets of latency; there
//! can be millions of such lists.

use damper_core::{Code, Ending, Fate};

pub(crate) const CALLS: u8 = 0;
pub(crate) const ATTEMPTS: u8 = 1;
pub(crate) const RETRIES: u8 = 2;
pub(crate) const HEDGES: u8 = 3;
pub(crate) const WOULD_HEDGES: u8 = 4;
pub(crate) const OUTER_LOOP_CALLS: u8 = 5;
pub(crate) const NO_CONTEXT_CALLS: u8 = 6;
const FIRST_ENDING: u8 = 7;
const FIRST_CODE: u8 = FIRST_ENDING + 2 * FATES;
const FATES: u8 = Fate::ALL.len() as u8;
/// How many counters there are.
pub(crate) const COUNTERS: usize = FIRST_CODE as usize + Code::ALL.len();

/// The counter of calls that ended so.
pub(crate) fn ending(Ending { fate, would }: Ending) -> u8 {
    FIRST_ENDING + 2 * fate as u8 + u8::from(would)
}

/// True if it counts calls that ended with an error which the application did not cause by giving up, or would have.
pub(crate) fn is_error(counter: u8) -> bool {
    let fate = counter.checked_sub(FIRST_ENDING).and_then(|at| Fate::ALL.get(usize::from(at / 2)));
    fate.is_some_and(|fate| !fate.is_ok() && *fate != Fate::Cancelled)
}

/// The counter of attempts that ended with this code.
pub(crate) fn code(code: Code) -> u8 {
    FIRST_CODE + code as u8
}

/// Counts by a small number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SparseCounters(Vec<(u8, u64)>);

impl SparseCounters {
    pub(crate) fn count(&self, of: u8) -> u64 {
        self.0.binary_search_by_key(&of, |(number, _)| *number).map_or(0, |at| self.0[at].1)
    }

    pub(crate) fn add(&mut self, to: u8, n: u64) {
        if n == 0 {
            return;
        }
        match self.0.binary_search_by_key(&to, |(number, _)| *number) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(n),
            Err(at) => self.0.insert(at, (to, n)),
        }
    }

    pub(crate) fn add_all(&mut self, more: &Self) {
        more.iter().for_each(|(number, n)| self.add(number, n));
    }

    /// True if no count is less than it was.
    pub(crate) fn covers(&self, before: &Self) -> bool {
        before.iter().all(|(number, n)| self.count(number) >= n)
    }

    /// What came on top of `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let more = self.iter().map(|(number, n)| (number, n.saturating_sub(before.count(number))));
        Self(more.filter(|(_, n)| *n > 0).collect())
    }

    /// The counts that are not 0, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, u64)> {
        self.0.iter().copied()
    }

    /// How many bytes its counts take.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * size_of::<(u8, u64)>()
    }

    /// Gives back the room that growing has left.
    pub(crate) fn pack(mut self) -> Self {
        self.0.shrink_to_fit();
        self
    }
}

/// Every ending that was counted.
pub(crate) fn endings(tally: &SparseCounters) -> impl Iterator<Item = (Ending, u64)> {
    Ending::all().map(|of| (of, tally.count(ending(of)))).filter(|(_, n)| *n > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_counter_has_a_number_of_its_own() {
        let mut numbers = BTreeSet::from([
            CALLS,
            ATTEMPTS,
            RETRIES,
            HEDGES,
            WOULD_HEDGES,
            OUTER_LOOP_CALLS,
            NO_CONTEXT_CALLS,
        ]);
        numbers.extend(Ending::all().map(ending));
        numbers.extend(Code::ALL.map(code));
        assert_eq!(numbers.len(), COUNTERS);
        assert_eq!(numbers.last().map(|last| usize::from(*last)), Some(COUNTERS - 1));
    }

    #[test]
    fn differences_leave_out_what_did_not_move_and_see_what_fell() {
        let tally = |counts: &[(u8, u64)]| {
            let mut tally = SparseCounters::default();
            counts.iter().for_each(|(number, n)| tally.add(*number, *n));
            tally
        };
        let (before, after) = (tally(&[(7, 2), (1, 5)]), tally(&[(1, 5), (7, 3), (200, 1)]));
        assert!(after.covers(&before) && !before.covers(&after));
        assert_eq!(after.since(&before), tally(&[(7, 1), (200, 1)]));
        assert!(!tally(&[(1, 9)]).covers(&before), "a counter that is gone has fallen");
    }
}
