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
        assert_eq!(admits(&bare(1000), Counts { failures, successes }), expected, "{failures}/{successes}");
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
    policy.retry = Some(crate::Retry { codes: CodeSet::of(&[Code::NotFound]), ..crate::Retry::default() });
    assert!(is_failure(Some(&policy), &failed(Code::NotFound)), "what is retried is a failure");
    policy.retry_breaker =
        Some(RetryBreaker { failure_codes: Some(CodeSet::of(&[Code::Aborted])), ..bare(1000) });
    assert!(!is_failure(Some(&policy), &failed(Code::Internal)), "the list is replaced");
    assert!(is_failure(Some(&policy), &failed(Code::NotFound)), "but for what is retried");
    let stop = Failure { pushback: Some(Pushback::Stop), ..failed(Code::Internal) };
    assert!(is_failure(Some(&policy), &stop), "a no-retry pushback is a failure under any list");
    let flagged = Failure { no_more_retry: true, ..stop };
    assert!(!is_failure(Some(&policy), &flagged), "the one that comes along with the flag is not");
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
