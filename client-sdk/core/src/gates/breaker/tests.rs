use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::fault::Ratio;
use crate::time::Time;
use crate::time::window::{Window, WindowShape};

fn bare(ratio_bp: u32) -> RetryBreaker {
    let (mode, ratio) = (BreakerMode::Ratio, Ratio::from_bp(ratio_bp));
    RetryBreaker { mode, ratio, min_failures: 0, ..RetryBreaker::default() }
}

#[test]
fn ratio_admits_90_failures_in_1000_and_not_91() {
    let check = |failures, successes, expected| {
        assert_eq!(is_free(&bare(1000), Counts { failures, successes }), expected, "{failures}/{successes}");
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
        assert!(is_free(&bare(bp), Counts { failures, successes }), "{bp}");
        assert!(!is_free(&bare(bp), Counts { failures: failures + 1, successes }), "{bp}");
    }
}

#[test]
fn below_the_minima_hedges_are_sent_and_no_retry_is_free() {
    let breaker = RetryBreaker { min_failures: 3, ..bare(1000) };
    assert!(admits_hedge(&breaker, Counts { failures: 3, successes: 0 }));
    assert!(!admits_hedge(&breaker, Counts { failures: 4, successes: 0 }));
    assert!(!is_free(&breaker, Counts { failures: 1, successes: 9 }));
    let breaker = RetryBreaker { min_samples: 12, ..bare(1000) };
    assert!(admits_hedge(&breaker, Counts { failures: 11, successes: 0 }));
    assert!(!admits_hedge(&breaker, Counts { failures: 12, successes: 0 }));
    assert!(!is_free(&breaker, Counts { failures: 1, successes: 10 }));
    assert!(is_free(&breaker, Counts { failures: 1, successes: 11 }));
}

#[test]
fn credit_makes_no_retry_free_and_hedges_use_the_ratio() {
    let breaker = RetryBreaker { mode: BreakerMode::Credit, ..bare(1000) };
    let (few, many) = (Counts { failures: 1, successes: 99 }, Counts { failures: 11, successes: 99 });
    assert!(!is_free(&breaker, few) && admits_hedge(&breaker, few) && !admits_hedge(&breaker, many));
}

#[test]
fn guards_ratio_must_admit_too() {
    let guarded = RetryBreaker { max_ratio: Some(Ratio::from_bp(100)), min_failures: 9, ..bare(1000) };
    for (successes, expected) in [(99, false), (100, true)] {
        let counts = Counts { failures: 1, successes };
        assert_eq!(is_within_guards(&guarded, counts), expected);
        assert_eq!(is_free(&guarded, counts), expected);
        assert_eq!(admits_hedge(&guarded, counts), expected);
        assert!(is_within_guards(&RetryBreaker { max_ratio: None, ..guarded }, counts));
    }
}

#[test]
fn failure_codes_include_retried_codes_and_can_be_replaced() {
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
fn idle_time_clears_counts() {
    let window = Window::new(WindowShape::default());
    let at = |ms: u64| Time::from_micros(ms * 1000);
    for _ in 0..1000 {
        window.count_failure(at(500));
    }
    assert!(!is_free(&bare(1000), window.counts(at(9_999))), "within the window the outage is known");
    assert_eq!(window.counts(at(10_000)).failures, 0, "one window after its bucket it is forgotten");
    for idle_s in [11, 20, 100, 1_000_000, 10_000_000_000_u64] {
        assert_eq!(window.counts(at(idle_s * 1000)).failures, 0, "{idle_s} s idle");
    }
}

#[test]
fn breaker_admits_no_more_than_its_bound_under_any_interleaving() {
    // Eight threads fail at once from cold, across bucket boundaries, some successes among them.
    for (ratio_bp, successes_every) in [(1000, 7), (1000, 0), (5000, 3)] {
        let breaker = bare(ratio_bp);
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
                        if is_free(&breaker, counts) {
                            admitted.fetch_add(1, Ordering::SeqCst);
                            seen.fetch_max(counts.successes, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let bound = seen.into_inner() * u64::from(ratio_bp) / 10_000;
        assert!(admitted.into_inner() <= bound, "bound {bound}");
    }
}

proptest! {
    #[test]
    fn window_agrees_with_a_plain_list_of_events(
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
    fn decision_never_overflows(f in any::<u64>(), s in any::<u64>(), bp in 10_u32..=10_000) {
        let _ = is_free(&bare(bp), Counts { failures: f, successes: s });
    }
}
