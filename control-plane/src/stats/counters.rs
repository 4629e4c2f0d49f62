//! Counts by a small index, as a sorted list without zeros.
//!
//! A process reports about 10 of the 60 counters of a route, and about 20 of its 256 latency buckets; there
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
/// The number of counters.
pub(crate) const COUNTERS: usize = FIRST_CODE as usize + Code::ALL.len();

/// Returns the counter of calls with this fate.
pub(crate) fn ending(Ending { fate, would }: Ending) -> u8 {
    FIRST_ENDING + 2 * fate as u8 + u8::from(would)
}

/// True for counters of calls that failed, or would have, unless the application cancelled them.
pub(crate) fn is_error(counter: u8) -> bool {
    let fate = counter.checked_sub(FIRST_ENDING).and_then(|at| Fate::ALL.get(usize::from(at / 2)));
    fate.is_some_and(|fate| !fate.is_ok() && *fate != Fate::Cancelled)
}

/// Returns the counter of attempts with this code.
pub(crate) fn code(code: Code) -> u8 {
    FIRST_CODE + code as u8
}

/// Counts by a small index.
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

    /// True if no count is lower than before.
    pub(crate) fn covers(&self, before: &Self) -> bool {
        before.iter().all(|(number, n)| self.count(number) >= n)
    }

    /// Returns the increase since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let more = self.iter().map(|(number, n)| (number, n.saturating_sub(before.count(number))));
        Self(more.filter(|(_, n)| *n > 0).collect())
    }

    /// Returns the counts above 0, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, u64)> {
        self.0.iter().copied()
    }

    /// The memory of the counts in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * size_of::<(u8, u64)>()
    }

    /// Releases unused capacity.
    pub(crate) fn pack(mut self) -> Self {
        self.0.shrink_to_fit();
        self
    }
}

/// Returns every counted fate.
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
