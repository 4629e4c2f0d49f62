//! Failure streak: the number of failures in a row without a success.
//!
//! One atomic word holds the number and the time of the last failure, so that a streak expires by time alone.
//! A success ends it; if there is none, that is one relaxed read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Time, micros};

const LENGTH_BITS: u32 = 20;
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;

/// A streak of failures.
#[derive(Debug, Default)]
pub(crate) struct FailureStreak(AtomicU64);

impl FailureStreak {
    /// Adds a failure and returns the length of the streak. A streak whose last failure is older than
    /// `memory` has ended.
    pub(crate) fn extend(&self, now: Time, memory: Duration) -> u64 {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let length = (length_at(old, now, memory) + 1).min(LENGTH_MAX);
            let new = pack(now, length);
            match self.0.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return length,
                Err(changed) => old = changed,
            }
        }
    }

    /// Ends the streak after a success.
    pub(crate) fn end(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Stores milliseconds; 44 bits last for five hundred years.
fn pack(last: Time, length: u64) -> u64 {
    ((last.as_micros() / 1_000) << LENGTH_BITS) | length
}

fn length_at(word: u64, now: Time, memory: Duration) -> u64 {
    let last = word >> LENGTH_BITS;
    let over = (now.as_micros() / 1_000).saturating_sub(last) > micros(memory) / 1_000;
    if over { 0 } else { word & LENGTH_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    #[test]
    fn streak_grows_until_a_success_ends_it() {
        let run = FailureStreak::default();
        assert_eq!((1..=3).map(|ms| run.extend(at(ms), MEMORY)).collect::<Vec<_>>(), [1, 2, 3]);
        run.end();
        assert_eq!(run.extend(at(5), MEMORY), 1);
    }

    #[test]
    fn streak_ends_by_time_alone() {
        let run = FailureStreak::default();
        run.extend(at(5_000), MEMORY);
        assert_eq!(run.extend(at(15_000), MEMORY), 2);
        assert_eq!(run.extend(at(25_001), MEMORY), 1);
    }

    #[test]
    fn failures_of_many_threads_form_one_streak() {
        let run = FailureStreak::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| _ = run.extend(at(1), MEMORY)));
            }
        });
        assert_eq!(run.extend(at(1), MEMORY), 4_001);
    }
}
