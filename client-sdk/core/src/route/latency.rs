//! Latencies of attempts and calls, in buckets of atomics.
//!
//! Buckets are log-linear: below 8 µs one per microsecond, above eight per power of two, so that a bucket is
//! at most an eighth of its value wide. The last one takes all values from about an hour up. A quantile is
//! the middle of its bucket: within 6.25 % of the true value.
//!
//! [`Recent`] keeps the current window and the one before, so its values are at most two windows old and
//! expire by time alone. Rotating the window while other threads record can lose a few values; that does not
//! matter for a quantile.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::fault::Percent;
use crate::time::{Time, micros};

/// Number of buckets.
pub const BUCKETS: usize = 256;
const SUB_BITS: u32 = 3;
const SUBS: u64 = 1 << SUB_BITS;
/// Length of one window of [`Recent`].
const WINDOW: Duration = Duration::from_secs(10);
/// Percentile of the usual latency.
const USUAL: Percent = Percent::from_hundredths(9_900);
/// Samples needed for the usual latency.
const USUAL_MIN_SAMPLES: u32 = 20;

/// Returns the bucket of a duration.
#[must_use]
pub fn bucket_of(duration: Duration) -> usize {
    let us = micros(duration);
    if us < SUBS {
        return usize::try_from(us).unwrap_or(0);
    }
    let octave = us.ilog2() - SUB_BITS;
    let index = u64::from(octave) * SUBS + (us >> octave);
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// Returns the middle of a bucket.
#[must_use]
pub fn middle_of(bucket: usize) -> Duration {
    let bucket = bucket.min(BUCKETS - 1) as u64;
    if bucket < SUBS {
        return Duration::from_micros(bucket);
    }
    let octave = bucket / SUBS - 1;
    let low = (bucket - octave * SUBS) << octave;
    Duration::from_micros(low + ((1 << octave) >> 1))
}

/// Returns the longest duration of a bucket: an upper limit for the values in it.
#[must_use]
pub fn end_of(bucket: usize) -> Duration {
    let bucket = bucket.min(BUCKETS - 1) as u64;
    if bucket < SUBS {
        return Duration::from_micros(bucket);
    }
    let octave = bucket / SUBS - 1;
    Duration::from_micros(((bucket - octave * SUBS + 1) << octave) - 1)
}

/// Returns the quantile at this share, in ten-thousandths; `None` if nothing was counted. `counts` are pairs
/// of bucket and count in ascending order of buckets.
#[must_use]
pub fn quantile(counts: impl Iterator<Item = (usize, u64)> + Clone, share_bp: u32) -> Option<Duration> {
    // Peers report the counts; a u128 holds the sum of any of them.
    let total: u128 = counts.clone().map(|(_, count)| u128::from(count)).sum();
    let rank = (total * u128::from(share_bp)).div_ceil(10_000).max(1);
    let mut seen = 0_u128;
    for (bucket, count) in counts {
        seen += u128::from(count);
        if count > 0 && seen >= rank {
            return Some(middle_of(bucket));
        }
    }
    None
}

/// Counts since the driver started.
#[derive(Debug)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        if let Some(bucket) = self.0.get(bucket_of(duration)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the non-empty buckets with their counts, in ascending order.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u64)> + Clone {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).enumerate().filter(|(_, count)| *count > 0)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

/// Recent latencies.
#[derive(Debug)]
pub struct Recent {
    /// Number of the current window; the other half holds the one before.
    window: AtomicU64,
    halves: [HalfWindow; 2],
    usual: PerWindow,
}

/// A duration that is computed once per window of [`Recent`].
#[derive(Debug, Default)]
pub(crate) struct PerWindow(AtomicU64);

impl PerWindow {
    const BITS: u32 = 40;
    const UNKNOWN: u64 = (1 << Self::BITS) - 1;

    /// Returns true if the last value was set in the window of `now`, and that value.
    pub(crate) fn get(&self, now: Time) -> (bool, Option<Duration>) {
        let word = self.0.load(Ordering::Relaxed);
        let us = word & Self::UNKNOWN;
        let is_known = word != 0 && us != Self::UNKNOWN;
        (word >> Self::BITS == Self::window(now), is_known.then(|| Duration::from_micros(us)))
    }

    pub(crate) fn put(&self, now: Time, found: Option<Duration>) {
        let us = found.map_or(Self::UNKNOWN, |found| micros(found).min(Self::UNKNOWN - 1));
        self.0.store((Self::window(now) << Self::BITS) | us, Ordering::Relaxed);
    }

    /// Never 0 within five years: 0 marks an unset word.
    fn window(now: Time) -> u64 {
        (Recent::window_of(now) + 1) & (u64::MAX >> Self::BITS)
    }
}

#[derive(Debug)]
struct HalfWindow {
    total: AtomicU32,
    counts: [AtomicU32; BUCKETS],
}

impl Recent {
    /// Counts one duration that ended at `now`.
    pub fn record(&self, now: Time, duration: Duration) {
        self.turn_over(now);
        let half = self.half(self.window.load(Ordering::Relaxed));
        if let Some(bucket) = half.counts.get(bucket_of(duration)) {
            bucket.fetch_add(1, Ordering::Relaxed);
            half.total.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the median of recent values, if there are at least `min_samples`.
    #[must_use]
    pub fn median(&self, now: Time, min_samples: u32) -> Option<Duration> {
        self.turn_over(now);
        let [a, b] = &self.halves;
        rank([a, b], Percent::from_hundredths(5_000), min_samples).map(middle_of)
    }

    /// Returns the percentile of recent values, if there are at least `min_samples`.
    #[must_use]
    pub fn percentile(&self, now: Time, at: Percent, min_samples: u32) -> Option<Duration> {
        self.turn_over(now);
        let [a, b] = &self.halves;
        rank([a, b], at, min_samples).map(end_of)
    }

    /// Returns the percentile of the last complete window, together with the values of `others` in it.
    #[must_use]
    pub fn complete_percentile(
        &self,
        others: Option<&Self>,
        now: Time,
        at: Percent,
        min_samples: u32,
    ) -> Option<Duration> {
        let complete = Self::window_of(now).checked_sub(1)?;
        let half = |recent: &Self| {
            recent.turn_over(now);
            Self::window_of(now) == recent.window.load(Ordering::Relaxed)
        };
        let ours = half(self).then(|| self.half(complete));
        let theirs = others.filter(|others| half(others)).map(|others| others.half(complete));
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => rank([ours, theirs], at, min_samples),
            (Some(one), None) | (None, Some(one)) => rank([one], at, min_samples),
            (None, None) => None,
        }
        .map(end_of)
    }

    /// Returns the last known 99th percentile, and true if it is current.
    pub(crate) fn usual(&self, now: Time) -> (Option<Duration>, bool) {
        let (is_present, known) = self.usual.get(now);
        if is_present {
            return (known, true);
        }
        let Some(found) = self.percentile(now, USUAL, USUAL_MIN_SAMPLES) else { return (known, false) };
        self.usual.put(now, Some(found));
        (Some(found), true)
    }

    /// Returns the number of the window of a time.
    pub(crate) fn window_of(now: Time) -> u64 {
        now.as_micros() / micros(WINDOW)
    }

    /// Makes the window of `now` the current one; the first thread clears the old values.
    fn turn_over(&self, now: Time) {
        let present = Self::window_of(now);
        let old = self.window.load(Ordering::Relaxed);
        if present <= old {
            return;
        }
        if self.window.compare_exchange(old, present, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.half(present).clear();
            if present > old + 1 {
                self.half(present + 1).clear();
            }
        }
    }

    fn half(&self, window: u64) -> &HalfWindow {
        let [even, odd] = &self.halves;
        if window.is_multiple_of(2) { even } else { odd }
    }
}

/// Returns the bucket of this percentile, if there are at least `min_samples`.
fn rank<const N: usize>(halves: [&HalfWindow; N], at: Percent, min_samples: u32) -> Option<usize> {
    let total: u64 = halves.iter().map(|half| u64::from(half.total.load(Ordering::Relaxed))).sum();
    if total < u64::from(min_samples.max(1)) {
        return None;
    }
    let wanted = (total * u64::from(at.hundredths())).div_ceil(10_000).max(1);
    let mut seen = 0;
    (0..BUCKETS).find(|bucket| {
        let counts = halves.iter().filter_map(|half| half.counts.get(*bucket));
        seen += counts.map(|count| u64::from(count.load(Ordering::Relaxed))).sum::<u64>();
        seen >= wanted
    })
}

impl HalfWindow {
    fn clear(&self) {
        self.total.store(0, Ordering::Relaxed);
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl Default for HalfWindow {
    fn default() -> Self {
        Self { total: AtomicU32::new(0), counts: [const { AtomicU32::new(0) }; BUCKETS] }
    }
}

impl Default for Recent {
    fn default() -> Self {
        let halves = [HalfWindow::default(), HalfWindow::default()];
        Self { window: AtomicU64::new(0), halves, usual: PerWindow::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bucket_middle_is_within_a_sixteenth_of_its_values(us in 0_u64..3_600_000_000) {
            let bucket = bucket_of(Duration::from_micros(us));
            let middle = u64::try_from(middle_of(bucket).as_micros()).unwrap();
            prop_assert_eq!(bucket_of(Duration::from_micros(middle)), bucket);
            prop_assert!(middle.abs_diff(us) <= us / 16 + 1, "{} for {}", middle, us);
        }

        #[test]
        fn any_duration_has_a_bucket(us in any::<u64>()) {
            prop_assert!(bucket_of(Duration::from_micros(us)) < BUCKETS);
        }
    }

    #[test]
    fn bucket_ends_where_the_next_begins() {
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(end_of(bucket)), bucket);
            assert_eq!(bucket_of(end_of(bucket) + Duration::from_micros(1)), bucket + 1);
        }
    }

    #[test]
    fn complete_percentile_excludes_the_current_window() {
        let (recent, others) = (Recent::default(), Recent::default());
        let at = |s: u64| Time::from_micros(s * 1_000_000);
        let p = |now, share| {
            recent.complete_percentile(Some(&others), at(now), Percent::from_hundredths(share), 20)
        };
        (0..19).for_each(|_| recent.record(at(1), Duration::from_millis(10)));
        others.record(at(1), Duration::from_millis(90));
        assert_eq!(p(9, 9_500), None, "its window is not over");
        recent.record(at(12), Duration::from_secs(1));
        let near = |found: Option<Duration>, ms: u64| {
            let (found, truth) = (found.unwrap(), Duration::from_millis(ms));
            assert!(found >= truth && found < truth + truth / 7, "{found:?}");
        };
        near(p(12, 9_500), 10);
        near(p(12, 9_600), 90);
        assert_eq!(p(23, 9_500), None, "one sample is too few");
    }

    #[test]
    fn buckets_ascend_without_a_gap() {
        let mut last = 0;
        for us in 0..2_000_000 {
            let bucket = bucket_of(Duration::from_micros(us));
            assert!(bucket == last || bucket == last + 1, "{us}");
            last = bucket;
        }
    }

    #[test]
    fn median_needs_samples_and_expires_by_time_alone() {
        let recent = Recent::default();
        let at = |s: u64| Time::from_micros(s * 1_000_000);
        for i in 0..20 {
            assert_eq!(recent.median(at(1), 20), None, "{i} samples");
            recent.record(at(1), Duration::from_millis(100));
        }
        let median = recent.median(at(1), 20).unwrap();
        assert!(median.abs_diff(Duration::from_millis(100)) < Duration::from_millis(7), "{median:?}");
        assert!(recent.median(at(19), 20).is_some(), "the window before is still known");
        assert_eq!(recent.median(at(20), 20), None, "two windows on nothing is known");
    }

    #[test]
    fn quantiles_follow_the_ranks() {
        let histogram = Histogram::default();
        for ms in 1..=100 {
            histogram.record(Duration::from_millis(ms));
        }
        let near = |share, ms: u64| {
            let found = quantile(histogram.counts(), share).unwrap();
            let off = found.abs_diff(Duration::from_millis(ms));
            assert!(off <= Duration::from_millis(ms) / 16, "{share} bp: {found:?}");
        };
        near(5_000, 50);
        near(9_900, 99);
        near(0, 1);
        assert_eq!(quantile(Histogram::default().counts(), 5_000), None);
    }

    #[test]
    fn quantile_of_the_largest_counts_is_still_their_rank() {
        let counts = [(10, u64::MAX), (20, u64::MAX), (30, u64::MAX)];
        for (share, bucket) in [(0, 10), (3_333, 10), (3_334, 20), (6_667, 30), (10_000, 30)] {
            assert_eq!(quantile(counts.into_iter(), share), Some(middle_of(bucket)), "{share} bp");
        }
    }
}
