use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const DAMPER: Option<Repeater> = Some(Repeater::Damper);

fn limit(mode: Mode, bp: u32, min: u32) -> RepeatLimit {
    RepeatLimit { mode, ratio: Ratio::from_bp(bp), min }
}

fn limits(all: &[RepeatLimit]) -> Limits {
    all.iter().copied().collect()
}

fn at(ms: u64) -> Time {
    Time::from_micros(ms * 1000)
}

/// Sends requests at once; returns the number served.
fn arrive(served: &Served, count: u32, repeated_by: Option<Repeater>, limits: Limits, now: Time) -> u32 {
    let admissions = (0..count).map(|_| served.arrived(repeated_by, limits, now));
    u32::try_from(admissions.filter(|admission| *admission != LimitDecision::Shed).count()).unwrap()
}

#[test]
fn retries_are_served_up_to_the_ratio_or_the_minimum() {
    let check = |first_sends, bp, min, expected| {
        let (served, limits) = (Served::default(), limits(&[limit(Mode::Enforce, bp, min)]));
        assert_eq!(arrive(&served, first_sends, None, limits, at(500)), first_sends);
        assert_eq!(arrive(&served, 1000, DAMPER, limits, at(500)), expected, "{first_sends} {bp} {min}");
        assert_eq!(served.shed(), u64::from(1000 - expected));
    };
    check(1000, 1000, 3, 100);
    check(1009, 1000, 0, 100);
    check(1010, 1000, 0, 101);
    check(0, 1000, 3, 3);
    check(29, 1000, 3, 3);
    check(0, 1000, 0, 0);
    check(100, 10_000, 0, 100);
    // 0.35 has no exact binary form.
    check(100, 3500, 0, 35);
}

#[test]
fn first_attempts_are_never_rejected() {
    let (served, limits) = (Served::default(), limits(&[limit(Mode::Enforce, 10, 0)]));
    assert_eq!(arrive(&served, 100, DAMPER, limits, at(0)), 0);
    assert_eq!(arrive(&served, 100, None, limits, at(0)), 100);
}

#[test]
fn rejected_retries_do_not_count_against_later_ones() {
    let (served, limits) = (Served::default(), limits(&[limit(Mode::Enforce, 1000, 0)]));
    arrive(&served, 100, None, limits, at(0));
    assert_eq!(arrive(&served, 500, DAMPER, limits, at(0)), 10);
    arrive(&served, 100, None, limits, at(900));
    assert_eq!(arrive(&served, 500, DAMPER, limits, at(900)), 10, "20 of 200 in all");
    assert_eq!(arrive(&served, 500, DAMPER, limits, at(9_999)), 0);
    arrive(&served, 30, None, limits, at(10_000));
    assert_eq!(arrive(&served, 500, DAMPER, limits, at(10_000)), 3, "one window later all is forgotten");
}

#[test]
fn observed_limit_rejects_nothing_and_counts_would_be_rejected() {
    let (served, limits) = (Served::default(), limits(&[limit(Mode::Observe, 1000, 0)]));
    arrive(&served, 100, None, limits, at(0));
    for second in 0..3 {
        // If enforced, 10 in the first second and 2 more per 20 first attempts would be served.
        assert_eq!(arrive(&served, 50, DAMPER, limits, at(second * 1000)), 50);
        arrive(&served, 20, None, limits, at(second * 1000));
    }
    assert_eq!((served.shed(), served.would_be_shed()), (0, 150 - (10 + 2 + 2)));
}

#[test]
fn observed_limit_never_rejects_next_to_an_enforced_one() {
    let strict = limit(Mode::Observe, 100, 0);
    let lax = limit(Mode::Enforce, 5000, 10);
    for both in [[strict, lax], [lax, strict]] {
        let (served, limits) = (Served::default(), limits(&both));
        arrive(&served, 100, None, limits, at(0));
        assert_eq!(arrive(&served, 100, DAMPER, limits, at(0)), 50);
        // The observed limit would have served one of those served.
        assert_eq!((served.shed(), served.would_be_shed()), (50, 49));
    }
}

#[test]
fn limits_of_one_mode_combine_to_the_lowest_values() {
    let all = [limit(Mode::Enforce, 1000, 50), limit(Mode::Enforce, 5000, 2), limit(Mode::Off, 10, 0)];
    assert_eq!(limits(&all), limits(&[limit(Mode::Enforce, 1000, 2)]));
    assert_eq!(limits(&[limit(Mode::Off, 10, 0)]), Limits::default());
}

#[test]
fn local_override_only_reduces() {
    let modes = [Mode::Off, Mode::Observe, Mode::Enforce];
    for (said, most) in modes.into_iter().flat_map(|said| modes.map(|most| (said, most))) {
        assert_eq!(limit(said, 1000, 3).at_most(most), limit(said.min(most), 1000, 3));
    }
}

#[test]
fn requests_are_counted_by_repeater_without_a_limit() {
    let served = Served::default();
    let none = Limits::default();
    for (count, by) in [(7, None), (3, DAMPER), (2, Some(Repeater::Grpc)), (5, Some(Repeater::Envoy))] {
        assert_eq!(arrive(&served, count, by, none, at(1)), count);
    }
    assert_eq!(served.first_sends(), 7);
    assert_eq!(Repeater::ALL.map(|by| served.repeats(by)), [3, 2, 5]);
    assert_eq!((served.shed(), served.would_be_shed()), (0, 0));
}

#[test]
fn served_retries_stay_within_the_bound_under_any_interleaving() {
    for (bp, min, first_sends_every) in [(1000, 0, 3), (1000, 3, 0), (5000, 40, 7), (10_000, 1, 2)] {
        let limits = limits(&[limit(Mode::Enforce, bp, min)]);
        let served = Served::default();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let served = &served;
                scope.spawn(move || {
                    for step in 0..2_000_u64 {
                        // All within one window less one bucket (9 s), each thread a little off.
                        let now = Time::from_micros(100_000_000 + step * 4_450 + thread);
                        if first_sends_every > 0 && step % first_sends_every == 0 {
                            served.arrived(None, limits, now);
                        }
                        served.arrived(DAMPER, limits, now);
                    }
                });
            }
        });
        let repeats = 8 * 2_000 - served.shed();
        let bound = (served.first_sends() * u64::from(bp) / 10_000).max(u64::from(min));
        assert!(repeats <= bound, "{repeats} > {bound}");
        let counts = served.window.counts(at(108_900));
        assert_eq!(counts.failures, repeats, "each that was refused is taken back, no other");
        // Threads that reserve at the same time may reject each other, but not for long.
        assert!(repeats + 8 >= bound, "{repeats} of {bound}");
    }
}

proptest! {
    #[test]
    fn sequential_retries_are_served_exactly_up_to_the_bound(
        arrivals in proptest::collection::vec((0_u64..700, any::<bool>()), 0..400),
        bp in prop_oneof![Just(10_u32), Just(10_000), 10_u32..=10_000],
        min in prop_oneof![Just(0_u32), 0_u32..8],
        start in prop_oneof![Just(0_u64), Just(9_999), Just(u64::from(u32::MAX))],
    ) {
        let limits = limits(&[limit(Mode::Enforce, bp, min)]);
        let served = Served::default();
        let (mut first_sends, mut repeats) = (VecDeque::new(), VecDeque::new());
        let mut ms = start;
        for (wait, repeat) in arrivals {
            ms += wait;
            let oldest = (ms / 1000).saturating_sub(9);
            first_sends.retain(|second| *second >= oldest);
            repeats.retain(|second| *second >= oldest);
            let admission = served.arrived(DAMPER.filter(|_| repeat), limits, at(ms));
            if !repeat {
                first_sends.push_back(ms / 1000);
                prop_assert_eq!(admission, LimitDecision::Served);
                continue;
            }
            let by_ratio = (repeats.len() + 1) * 10_000 <= first_sends.len() * bp as usize;
            let expected = by_ratio || repeats.len() < min as usize;
            prop_assert_eq!(admission == LimitDecision::Served, expected, "at {} ms", ms);
            if expected { repeats.push_back(ms / 1000) }
        }
    }

    #[test]
    fn decision_never_overflows(repeats: u64, first_sends: u64, bp in 10_u32..=10_000, min: u32) {
        let _ = LimitBounds { ratio: Ratio::from_bp(bp), min }.admits(repeats, first_sends);
    }
}
