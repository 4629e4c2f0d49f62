//! Recent outcomes of an endpoint's attempts, one bit each, in one atomic word.
//!
//! The number of attempts is fixed, not a time span: a caller with one call per minute learns as much from
//! five failures as one with thousands per second.

use std::cmp;
use std::iter::Sum;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CHANCE, ROW};

/// Outcomes needed for a share of failures.
pub const MIN_OUTCOMES: u32 = 20;
/// Outcomes that are remembered.
pub const REMEMBERED: u32 = 32;

/// The upper half counts the outcomes; the lower half has a bit for each, the last one lowest; ones are
/// failures.
#[derive(Debug, Default)]
pub(super) struct Outcomes(AtomicU64);

/// Numbers of outcomes and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All outcomes.
    pub all: u32,
    /// Failures.
    pub failures: u32,
}

impl Outcomes {
    pub(super) fn push(&self, is_failure: bool) {
        let push = |word: u64| {
            let (count, bits) = unpack(word);
            let count = u64::from((count + 1).min(REMEMBERED));
            Some((count << REMEMBERED) | u64::from((bits << 1) | u32::from(is_failure)))
        };
        // The update always succeeds.
        _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, push);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Keeps only the streak of failures that ejected the endpoint: it shows the current state.
    pub(super) fn keep_row(&self) {
        let keep = |word: u64| {
            let row = unpack(word).1.trailing_ones();
            let bits = u64::from(u32::MAX.checked_shr(u32::BITS - row).unwrap_or_default());
            (row >= ROW).then_some((u64::from(row) << REMEMBERED) | bits)
        };
        // Without a streak all outcomes stay.
        _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep);
    }

    pub(super) fn counts(&self) -> Counts {
        let (all, bits) = self.load();
        Counts { all, failures: bits.count_ones() }
    }

    /// Returns true if the endpoint fails and the others do not: see the documentation of `endpoints`.
    pub(super) fn are_worse_than(&self, others: Counts) -> bool {
        let row = self.load().1.trailing_ones();
        others.failures < others.all
            && (row >= ROW && others.rarely_fail(row) || self.counts().is_far_above(others))
    }

    fn load(&self) -> (u32, u32) {
        unpack(self.0.load(Ordering::Relaxed))
    }
}

impl Counts {
    /// Orders by share of failures, lowest first.
    #[must_use]
    pub fn by_share(self, other: Self) -> cmp::Ordering {
        // No outcomes have a share of 0.
        let times = |failures: u32, all: u32| u64::from(failures) * u64::from(all.max(1));
        times(self.failures, other.all).cmp(&times(other.failures, self.all))
    }

    /// Returns the expected share of failures as a fraction: Laplace's rule of succession.
    fn expected(self) -> (u64, u64) {
        (u64::from(self.failures) + 1, u64::from(self.all) + 2)
    }

    pub(super) fn mostly_fail(self) -> bool {
        self.failures * 2 > self.all
    }

    /// Returns true if `row` failures in a row would occur by chance less than once in [`CHANCE`] times.
    fn rarely_fail(self, row: u32) -> bool {
        const FINE: u64 = 1_000_000_000;
        let (failures, all) = self.expected();
        let chance = (0..row).fold(FINE, |chance, _| chance.saturating_mul(failures) / all);
        chance <= FINE / CHANCE
    }

    /// Returns true if at least half failed, and three times the share expected by the others.
    #[must_use]
    pub fn is_far_above(self, others: Self) -> bool {
        let (failures, all) = others.expected();
        let (own_failures, own) = (u64::from(self.failures), u64::from(self.all));
        self.all >= MIN_OUTCOMES && own_failures * 2 >= own && own_failures * all >= 3 * failures * own
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, counts| Self {
            all: sum.all + counts.all,
            failures: sum.failures + counts.failures,
        })
    }
}

fn unpack(word: u64) -> (u32, u32) {
    let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (half(word >> REMEMBERED), half(word))
}
