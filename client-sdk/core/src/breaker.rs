//! The retry breaker: retries stop while too many attempts fail. It never stops a first attempt.
//!
//! An attempt that failed is counted **first**; then it may be retried if
//!
//! ```text
//! failures <= max(ratio x successes, min_failures)   or   failures + successes < min_samples
//! ```
//!
//! over the sliding window. With ratio 0.1 and no minimum 90 failures among 1,000 attempts may be retried
//! (90 <= 0.1 x 910), 91 may not. `min_failures` keeps routes with a call per second usable.
//!
//! Because every failing attempt counts itself before it asks, the bound holds under any interleaving of
//! threads: in a span of one window less one bucket no more retries are admitted than
//! max(ratio x the successes seen by the last admitted one, `min_failures`, `min_samples` - 1). Nothing
//! latches: what is older than the window is not counted, so retries resume at the latest one window after
//! the fault clears.
//!
//! The bare ratio switches retries off when a share of ratio / (1 + ratio) of the attempts fails, 9.1 % for
//! 0.1, although most retries would succeed; and it lets hundreds through when an outage begins, because so
//! many successes precede it. **Adaptive** asks what retries achieve. They are refused
//! - above the ratio while at least 10 of them ended in the window and fewer than half of these succeeded,
//! - at any ratio during a run of 20 failures without a success between, but for one probe per bucket: where
//!   only retries succeed nothing else could end the run,
//! - over the budget, which is 0.2 and 1 per second unless the rule sets it.
//!
//! Source: ByteDance's retry governance (failures against successes, 10 x 1 s, 0.1); the minimum, the order of
//! counting and asking, and the adaptive mode are ours.

use crate::classify::{Failure, Pushback};
use crate::code::{Code, CodeSet};
use crate::policy::{BreakerMode, Policy, RetryBreaker};
use crate::window::Counts;

/// So many retries must have ended in the window before their success rate counts.
const JUDGED_RETRIES: u64 = 10;
/// A run of so many failures is an outage.
const OUTAGE_RUN: u64 = 20;

/// What counts as a failure unless the rule says otherwise: the callee is in trouble, whether or not the
/// rule would retry it. Every other answer is a success: the callee is alive.
pub const FAILURES: CodeSet = CodeSet::of(&[
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
    Code::Internal,
    Code::Unknown,
    Code::DataLoss,
    Code::Aborted,
]);

/// True if an attempt that ended so counts as a failure in the window.
#[must_use]
pub fn is_failure(policy: Option<&Policy>, failure: &Failure) -> bool {
    let replaced = policy.and_then(|policy| policy.retry_breaker).and_then(|breaker| breaker.failure_codes);
    let retried = policy.and_then(|policy| policy.retry.as_ref()).map_or(CodeSet::EMPTY, |retry| retry.codes);
    let codes = replaced.unwrap_or(FAILURES.union(retried));
    codes.contains(failure.code) || failure.pushback == Some(Pushback::Stop)
}

/// What a breaker goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Attempts that ended in the window.
    pub attempts: Counts,
    /// Those of them that were retries or hedges.
    pub repeats: Counts,
    /// Failures without a success between.
    pub run: u64,
}

/// What a breaker says to a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Go.
    Admitted,
    /// Go if no other extra attempt was sent in this bucket.
    Probe,
    /// Not now.
    Refused,
}

/// May an attempt that failed and has been counted be retried?
#[must_use]
pub fn judge(breaker: &RetryBreaker, evidence: Evidence) -> Word {
    let Evidence { attempts, repeats, run } = evidence;
    let below = admits(breaker, attempts);
    match breaker.mode {
        BreakerMode::Ratio if below => Word::Admitted,
        BreakerMode::Ratio => Word::Refused,
        BreakerMode::Adaptive if run >= OUTAGE_RUN => Word::Probe,
        BreakerMode::Adaptive if below || !are_futile(repeats) => Word::Admitted,
        BreakerMode::Adaptive => Word::Refused,
    }
}

/// Enough retries ended, and fewer than half of them succeeded.
fn are_futile(Counts { failures, successes }: Counts) -> bool {
    failures.saturating_add(successes) >= JUDGED_RETRIES && successes < failures
}

/// True if an attempt that failed and has been counted may be retried by the ratio.
#[must_use]
pub fn admits(breaker: &RetryBreaker, counts: Counts) -> bool {
    let Counts { failures, successes } = counts;
    let by_ratio = failures.saturating_mul(10_000) <= successes.saturating_mul(u64::from(breaker.ratio.bp()));
    by_ratio
        || failures <= u64::from(breaker.min_failures)
        || failures.saturating_add(successes) < u64::from(breaker.min_samples)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::fault::Ratio;
    use crate::time::Time;
    use crate::window::{Window, WindowShape};

    fn bare(ratio_bp: u32) -> RetryBreaker {
        RetryBreaker { ratio: Ratio::from_bp(ratio_bp), min_failures: 0, ..RetryBreaker::default() }
    }

    #[test]
    fn ninety_failures_in_a_thousand_may_be_retried_and_ninety_one_may_not() {
        let check = |failures, successes, expected| {
            assert_eq!(
                admits(&bare(1000), Counts { failures, successes }),
                expected,
                "{failures}/{successes}"
            );
        };
        check(90, 910, true);
        check(91, 909, false);
        check(1, 9, false);
        check(1, 10, true);
        check(0, 0, true);
    }

    #[test]
    fn ratios_act_as_written() {
        // 0.15, 0.35 and 0.6 have no exact binary form; as ten-thousandths they are exact.
        for (bp, failures, successes) in [(1500, 15, 100), (3500, 35, 100), (6000, 60, 100), (10_000, 7, 7)] {
            assert!(admits(&bare(bp), Counts { failures, successes }), "{bp}");
            assert!(!admits(&bare(bp), Counts { failures: failures + 1, successes }), "{bp}");
        }
    }

    #[test]
    fn the_minima_keep_quiet_routes_usable() {
        let breaker = RetryBreaker::default();
        assert!(admits(&breaker, Counts { failures: 3, successes: 0 }));
        assert!(!admits(&breaker, Counts { failures: 4, successes: 0 }));
        let breaker = RetryBreaker { min_samples: 10, ..bare(1000) };
        assert!(admits(&breaker, Counts { failures: 9, successes: 0 }));
        assert!(!admits(&breaker, Counts { failures: 10, successes: 0 }));
    }

    #[test]
    fn adaptive_goes_by_what_retries_achieve_and_by_the_run() {
        let breaker = RetryBreaker { mode: BreakerMode::Adaptive, ..bare(1000) };
        let word = |failures, (retries_failed, retries_succeeded), run| {
            let attempts = Counts { failures, successes: 100 };
            let repeats = Counts { failures: retries_failed, successes: retries_succeeded };
            judge(&breaker, Evidence { attempts, repeats, run })
        };
        assert_eq!(word(11, (9, 0), 0), Word::Admitted, "nine are too few to judge");
        assert_eq!(word(11, (10, 0), 0), Word::Refused);
        assert_eq!(word(11, (5, 5), 0), Word::Admitted, "half is not fewer than half");
        assert_eq!(word(11, (6, 5), 0), Word::Refused);
        assert_eq!(word(10, (6, 5), 0), Word::Admitted, "the ratio allows ten");
        assert_eq!(word(10, (0, 9), 19), Word::Admitted);
        assert_eq!(word(10, (0, 9), 20), Word::Probe, "a run at any ratio");
        let ratio = Evidence { attempts: Counts { failures: 11, successes: 100 }, ..Evidence::default() };
        assert_eq!(judge(&bare(1000), ratio), Word::Refused);
        assert_eq!(judge(&bare(1000), Evidence { run: 99, ..Evidence::default() }), Word::Admitted);
    }

    #[test]
    fn failures_are_wider_than_what_is_retried_and_can_be_replaced() {
        let mut policy = Policy::new(crate::Mode::Enforce);
        let failed = |code| Failure::new(code);
        assert!(is_failure(Some(&policy), &failed(Code::Internal)));
        assert!(!is_failure(Some(&policy), &failed(Code::NotFound)));
        policy.retry =
            Some(crate::Retry { codes: CodeSet::of(&[Code::NotFound]), ..crate::Retry::default() });
        assert!(is_failure(Some(&policy), &failed(Code::NotFound)), "what is retried is a failure");
        policy.retry_breaker =
            Some(RetryBreaker { failure_codes: Some(CodeSet::of(&[Code::Aborted])), ..bare(1000) });
        assert!(!is_failure(Some(&policy), &failed(Code::Internal)), "the list is replaced");
        let stop = Failure { pushback: Some(Pushback::Stop), ..failed(Code::Internal) };
        assert!(is_failure(Some(&policy), &stop), "a no-retry pushback is a failure under any list");
    }

    #[test]
    fn idle_time_leaves_no_stale_counts_and_nothing_latches() {
        let window = Window::new(WindowShape::default());
        let at = |ms: u64| Time::from_micros(ms * 1000);
        for _ in 0..1000 {
            window.count_failure(at(500));
        }
        assert!(!admits(&bare(1000), window.counts(at(9_999))), "within the window the outage is known");
        assert_eq!(window.counts(at(10_000)).failures, 0, "one window after its bucket it is forgotten");
        for idle_s in [11, 20, 100, 1_000_000, 10_000_000_000_u64] {
            assert_eq!(window.counts(at(idle_s * 1000)).failures, 0, "{idle_s} s idle");
        }
    }

    #[test]
    fn breaker_admits_no_more_than_its_bound_under_any_interleaving() {
        // Eight threads fail at once from cold, across bucket boundaries, some successes among them.
        for (min_failures, ratio_bp, successes_every) in [(0, 1000, 7), (3, 1000, 0), (5, 5000, 3)] {
            let breaker = RetryBreaker { min_failures, ..bare(ratio_bp) };
            let window = Window::new(WindowShape { buckets: 5, bucket_length: Duration::from_millis(100) });
            let (admitted, seen) = (AtomicU64::new(0), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for thread in 0..8_u64 {
                    let (window, admitted, seen) = (&window, &admitted, &seen);
                    scope.spawn(move || {
                        for step in 0..2_000_u64 {
                            // All within one window less one bucket (0.4 s), each thread a little off.
                            let now = Time::from_micros(1_000_000 + step * 199 + thread);
                            if successes_every > 0 && step % successes_every == 0 {
                                window.count_success(now);
                            }
                            window.count_failure(now);
                            let counts = window.counts(now);
                            if admits(&breaker, counts) {
                                admitted.fetch_add(1, Ordering::SeqCst);
                                seen.fetch_max(counts.successes, Ordering::SeqCst);
                            }
                        }
                    });
                }
            });
            let by_ratio = seen.into_inner() * u64::from(ratio_bp) / 10_000;
            let bound = by_ratio.max(u64::from(min_failures));
            assert!(admitted.into_inner() <= bound, "bound {bound}");
        }
    }

    proptest! {
        #[test]
        fn a_window_agrees_with_a_plain_list_of_events(
            events in proptest::collection::vec((0_u64..3_000, any::<bool>()), 0..200),
            buckets in 2_u32..8,
        ) {
            let shape = WindowShape { buckets, bucket_length: Duration::from_millis(100) };
            let window = Window::new(shape);
            let mut sorted = events.clone();
            sorted.sort_unstable();
            for (ms, failed) in &sorted {
                let now = Time::from_micros(ms * 1000);
                if *failed { window.count_failure(now) } else { window.count_success(now) }
                let oldest_bucket = (ms / 100 + 1).saturating_sub(u64::from(buckets));
                let within = sorted.iter().filter(|(at, _)| at / 100 >= oldest_bucket && at <= ms);
                let upto = within.filter(|(at, f)| (at, f) < (ms, failed)).count();
                let counts = window.counts(now);
                prop_assert!(counts.failures + counts.successes > upto as u64);
            }
            if let Some((last, _)) = sorted.last() {
                let oldest = (last / 100 + 1).saturating_sub(u64::from(buckets));
                let live = || sorted.iter().filter(|(at, _)| at / 100 >= oldest);
                let counts = window.counts(Time::from_micros(last * 1000));
                prop_assert_eq!(counts.failures, live().filter(|(_, failed)| *failed).count() as u64);
                prop_assert_eq!(counts.successes, live().filter(|(_, failed)| !*failed).count() as u64);
            }
        }

        #[test]
        fn the_decision_never_overflows(f in any::<u64>(), s in any::<u64>(), bp in 10_u32..=10_000) {
            let _ = admits(&bare(bp), Counts { failures: f, successes: s });
        }
    }
}
