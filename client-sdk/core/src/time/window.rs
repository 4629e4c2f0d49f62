//! Failures and successes over a sliding window, counted without a lock.
//!
//! The window is a ring of buckets. A bucket is **one** atomic word: the lap of the ring that it belongs to,
//! and both counts. So moving a bucket to the next lap and counting in it is one change, and no count is lost
//! or survives its lap. A bucket of an older lap reads as empty: time alone empties the window.
//!
//! Counting and summing are sequentially consistent: of two threads that each count and then sum, at least
//! one sees the other's count, also if they count in different buckets. The bound of the retry breaker
//! depends on this.
//!
//! Limits: 1,048,575 of each kind per bucket, then the count saturates. Laps are compared modulo 2^24: a
//! window unused for that many laps (5 years for 10 x 1 s), less at most `LATE_LAPS`, would read its old
//! counts again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Time, micros};

const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const LAP_MASK: u64 = (1 << (64 - 2 * COUNT_BITS)) - 1;
/// Laps by which a thread's time may be behind another's without disturbing the counts.
const LATE_LAPS: u64 = 64;

/// Number and length of the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowShape {
    /// Number of buckets.
    pub buckets: u32,
    /// Length of one bucket.
    pub bucket_length: Duration,
}

impl WindowShape {
    /// Returns the length of the window.
    #[must_use]
    pub fn length(self) -> Duration {
        self.bucket_length.saturating_mul(self.buckets)
    }
}

impl Default for WindowShape {
    /// 10 buckets of 1 s.
    fn default() -> Self {
        Self { buckets: 10, bucket_length: Duration::from_secs(1) }
    }
}

/// Counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that failed.
    pub failures: u64,
    /// Attempts that succeeded.
    pub successes: u64,
}

impl Counts {
    /// Returns failures plus successes.
    #[must_use]
    pub fn total(self) -> u64 {
        self.failures.saturating_add(self.successes)
    }
}

/// A sliding window.
#[derive(Debug)]
pub struct Window {
    shape: WindowShape,
    /// Length of a bucket in microseconds.
    bucket_us: u64,
    buckets: Box<[AtomicU64]>,
}

impl Window {
    /// Returns an empty window. A count or length of zero is taken as the smallest possible.
    #[must_use]
    pub fn new(shape: WindowShape) -> Self {
        let count = usize::try_from(shape.buckets.max(1)).unwrap_or(1);
        let bucket_us = micros(shape.bucket_length).max(1);
        Self { shape, bucket_us, buckets: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns the shape.
    #[must_use]
    pub fn shape(&self) -> WindowShape {
        self.shape
    }

    /// Counts an attempt that failed at `now`.
    pub fn count_failure(&self, now: Time) {
        self.count(true, now);
    }

    /// Counts an attempt that succeeded at `now`.
    pub fn count_success(&self, now: Time) {
        self.count(false, now);
    }

    /// Counts an attempt that ended at `now`. Returns true if it is the first of its bucket.
    #[inline]
    pub(crate) fn count(&self, is_failure: bool, now: Time) -> bool {
        if is_failure {
            self.add(now, |bucket| Bucket { failures: (bucket.failures + 1).min(COUNT_MAX), ..bucket })
        } else {
            self.add(now, |bucket| Bucket { successes: (bucket.successes + 1).min(COUNT_MAX), ..bucket })
        }
    }

    /// Takes back one failure that was counted at `at`, unless its bucket has left the window since.
    pub fn take_back_failure(&self, at: Time) {
        let slot = self.slot(at);
        let Some(word) = self.buckets.get(slot.index) else {
            return;
        };
        let mut old = word.load(Ordering::SeqCst);
        loop {
            let bucket = Bucket::unpack(old);
            if bucket.lap != slot.lap || bucket.failures == 0 {
                return;
            }
            let new = Bucket { failures: bucket.failures - 1, ..bucket }.pack();
            match word.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(changed) => old = changed,
            }
        }
    }

    /// Returns the counts of the window that ends at `now`, including counts that other threads add a moment
    /// later.
    #[must_use]
    pub fn counts(&self, now: Time) -> Counts {
        self.counts_from(Time::ZERO, now)
    }

    /// Returns the counts of the window without the buckets that ended before `from`.
    #[must_use]
    pub fn counts_from(&self, from: Time, now: Time) -> Counts {
        let slot = self.slot(now);
        let Some(age_limit) = self.number(now).checked_sub(self.number(from)) else {
            return Counts::default();
        };
        let buckets = self.buckets.len() as u64;
        let mut sum = Counts::default();
        for (index, word) in self.buckets.iter().enumerate() {
            let bucket = Bucket::unpack(word.load(Ordering::SeqCst));
            // Buckets up to the current one are of this lap, later ones of the lap before.
            let is_behind = index <= slot.index;
            let oldest = if is_behind { slot.lap } else { slot.lap.wrapping_sub(1) };
            let distance = (slot.index as u64).wrapping_sub(index as u64);
            let age = if is_behind { distance } else { distance.wrapping_add(buckets) };
            if not_before(bucket.lap, oldest) && age <= age_limit {
                sum.failures += bucket.failures;
                sum.successes += bucket.successes;
            }
        }
        sum
    }

    fn add(&self, now: Time, add: impl Fn(Bucket) -> Bucket) -> bool {
        let slot = self.slot(now);
        let Some(word) = self.buckets.get(slot.index) else {
            return false;
        };
        let mut old = word.load(Ordering::SeqCst);
        loop {
            let bucket = Bucket::unpack(old);
            // A bucket on a later lap takes a late count too: the event happened and must be visible.
            let is_new = !not_before(bucket.lap, slot.lap);
            let current = if is_new { Bucket::empty(slot.lap) } else { bucket };
            match word.compare_exchange_weak(old, add(current).pack(), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return is_new,
                Err(changed) => old = changed,
            }
        }
    }

    /// Returns the number of the bucket since the origin.
    fn number(&self, now: Time) -> u64 {
        now.as_micros() / self.bucket_us
    }

    fn slot(&self, now: Time) -> Slot {
        let number = self.number(now);
        let buckets = self.buckets.len() as u64;
        Slot {
            index: usize::try_from(number % buckets).unwrap_or(0),
            // Lap 0 marks an unused bucket.
            lap: (number / buckets).wrapping_add(1) & LAP_MASK,
        }
    }
}

struct Slot {
    index: usize,
    lap: u64,
}

#[derive(Clone, Copy)]
struct Bucket {
    lap: u64,
    failures: u64,
    successes: u64,
}

impl Bucket {
    const fn empty(lap: u64) -> Self {
        Self { lap, failures: 0, successes: 0 }
    }

    const fn unpack(word: u64) -> Self {
        Self {
            lap: word >> (2 * COUNT_BITS),
            failures: (word >> COUNT_BITS) & COUNT_MAX,
            successes: word & COUNT_MAX,
        }
    }

    const fn pack(self) -> u64 {
        (self.lap << (2 * COUNT_BITS)) | (self.failures << COUNT_BITS) | self.successes
    }
}

/// Returns true if a lap is `oldest` or shortly after it.
fn not_before(lap: u64, oldest: u64) -> bool {
    (lap.wrapping_sub(oldest) & LAP_MASK) <= LATE_LAPS
}
