//! Failures and successes over a sliding window, counted without a lock.
//!
//! The window is a ring of buckets. A bucket is **one** atomic word: the lap of the ring it belongs to and
//! both counts. So moving a bucket on to the next lap and counting in it are one change, and a count can
//! neither be lost to a clearing nor survive one. A bucket of an older lap reads as empty: time alone
//! empties the window, nothing has to run for it.
//!
//! Counting and summing are sequentially consistent: of two threads that each count and then sum, at least
//! one sees the other's count, also when they count in different buckets. The retry breaker's bound rests on
//! this.
//!
//! Limits: 1,048,575 of each kind per bucket, then the count stays there. Laps are told apart modulo 2^24:
//! a window left alone for just that many laps (5 years for 10 x 1 s), less at most `LATE_LAPS`, would read
//! its old counts once more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Time, micros};

const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const LAP_MASK: u64 = (1 << (64 - 2 * COUNT_BITS)) - 1;
/// How many laps a thread's present may be behind another's without disturbing the counts.
const LATE_LAPS: u64 = 64;

/// How many buckets of which length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowShape {
    /// How many buckets.
    pub buckets: u32,
    /// How long each is.
    pub bucket_length: Duration,
}

impl WindowShape {
    /// How long the window is.
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

/// What a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that failed.
    pub failures: u64,
    /// Attempts that did not.
    pub successes: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn total(self) -> u64 {
        self.failures.saturating_add(self.successes)
    }
}

/// The window itself.
#[derive(Debug)]
pub struct Window {
    shape: WindowShape,
    buckets: Box<[AtomicU64]>,
}

impl Window {
    /// An empty window; a shape without buckets or length counts as having one of the shortest.
    #[must_use]
    pub fn new(shape: WindowShape) -> Self {
        let count = usize::try_from(shape.buckets.max(1)).unwrap_or(1);
        Self { shape, buckets: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Its shape.
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

    /// Counts an attempt that ended at `now`. True if it is the first of its bucket.
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

    /// What was counted in the window that ends at `now`; also what another thread counted a moment later.
    #[must_use]
    pub fn counts(&self, now: Time) -> Counts {
        self.counts_from(Time::ZERO, now)
    }

    /// The same without the buckets that ended before `from`.
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
            // Buckets behind the present one are of this lap, those ahead of it of the one before.
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
            // A bucket that is already on a later lap takes a late count too: it happened, and must be seen.
            let is_new = !not_before(bucket.lap, slot.lap);
            let current = if is_new { Bucket::empty(slot.lap) } else { bucket };
            match word.compare_exchange_weak(old, add(current).pack(), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return is_new,
                Err(changed) => old = changed,
            }
        }
    }

    /// Which bucket since the origin.
    fn number(&self, now: Time) -> u64 {
        now.as_micros() / micros(self.shape.bucket_length).max(1)
    }

    fn slot(&self, now: Time) -> Slot {
        let number = self.number(now);
        let buckets = self.buckets.len() as u64;
        Slot {
            index: usize::try_from(number % buckets).unwrap_or(0),
            // Lap 0 is that of a bucket nobody has counted in.
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

/// True if a lap is `oldest` or one of those shortly after it.
fn not_before(lap: u64, oldest: u64) -> bool {
    (lap.wrapping_sub(oldest) & LAP_MASK) <= LATE_LAPS
}
