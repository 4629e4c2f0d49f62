use super::*;
use crate::outcome::code::CodeSet;
use proptest::prelude::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn exponential(base: u64, multiplier_bp: u32, max: u64, jitter: Jitter) -> Backoff {
    let growth = Growth { max: ms(max), over_max: OverMax::Cap, jitter };
    Backoff::Always(Waits::Exponential { base: ms(base), multiplier: Ratio::from_bp(multiplier_bp), growth })
}

fn fixed(delay: Duration, jitter: Jitter) -> Backoff {
    Backoff::Always(Waits::Fixed { delay, jitter })
}

fn random(min: u64, max: u64) -> Backoff {
    Backoff::Always(Waits::Random { min: ms(min), max: ms(max), jitter: Jitter::None })
}

fn waits(backoff: &Backoff, random: u64, count: usize) -> Vec<Duration> {
    let mut sequence = Sequence::default();
    (0..count).map(|_| sequence.next(backoff, Code::Unavailable, random).unwrap()).collect()
}

#[test]
fn sequences_without_jitter_are_as_written() {
    let check = |backoff: Backoff, expected: &[u64]| {
        let expected: Vec<_> = expected.iter().copied().map(ms).collect();
        assert_eq!(waits(&backoff, u64::MAX / 3, expected.len()), expected, "{backoff:?}");
    };
    check(Backoff::Always(Waits::None), &[0, 0, 0]);
    check(fixed(ms(40), Jitter::None), &[40, 40, 40]);
    check(exponential(25, 20_000, 250, Jitter::None), &[25, 50, 100, 200, 250, 250]);
    check(exponential(100, 10_000, 250, Jitter::None), &[100, 100, 100]);
    check(exponential(0, 20_000, 250, Jitter::None), &[0, 0, 0]);
    check(random(7, 7), &[7, 7]);
}

fn growth(max: u64, over_max: OverMax) -> Growth {
    Growth { max: ms(max), over_max, jitter: Jitter::None }
}

/// Returns the waits in milliseconds until the sequence ends, at most ten.
fn all(backoff: &Backoff) -> Vec<u64> {
    let mut sequence = Sequence::default();
    let waits = std::iter::from_fn(|| sequence.next(backoff, Code::Unavailable, 0));
    waits.take(10).map(|wait| u64::try_from(wait.as_millis()).unwrap()).collect()
}

#[test]
fn incrementing_goes_up_to_its_ceiling_and_down_to_nothing() {
    let incrementing = |step, over_max| {
        Backoff::Always(Waits::Incrementing { initial: ms(100), step, growth: growth(250, over_max) })
    };
    let up = Increment::Up(ms(50));
    assert_eq!(all(&incrementing(up, OverMax::Cap))[..6], [100, 150, 200, 250, 250, 250]);
    assert_eq!(all(&incrementing(up, OverMax::Stop)), [100, 150, 200, 250]);
    assert_eq!(all(&incrementing(Increment::Down(ms(40)), OverMax::Stop))[..5], [100, 60, 20, 0, 0]);
}

#[test]
fn fibonacci_adds_the_two_before() {
    let fibonacci =
        |over_max| Backoff::Always(Waits::Fibonacci { unit: ms(10), growth: growth(130, over_max) });
    assert_eq!(all(&fibonacci(OverMax::Cap)), [10, 10, 20, 30, 50, 80, 130, 130, 130, 130]);
    assert_eq!(all(&fibonacci(OverMax::Stop)), [10, 10, 20, 30, 50, 80, 130]);
}

#[test]
fn exponential_may_stop_instead_of_waiting_at_its_ceiling() {
    let exponential = Backoff::Always(Waits::Exponential {
        base: ms(25),
        multiplier: Ratio::from_bp(20_000),
        growth: growth(250, OverMax::Stop),
    });
    assert_eq!(all(&exponential), [25, 50, 100, 200]);
}

#[test]
fn wait_at_the_ceiling_goes_on_and_one_above_it_stops() {
    let count = |waits: Waits| all(&Backoff::Always(waits)).len();
    let us = Duration::from_micros;
    let stop = |max| Growth { max, over_max: OverMax::Stop, jitter: Jitter::None };
    let exponential = |base, multiplier_bp, max| {
        count(Waits::Exponential { base, multiplier: Ratio::from_bp(multiplier_bp), growth: stop(max) })
    };
    assert_eq!(exponential(ms(25), 20_000, ms(200)), 4, "25, 50, 100, 200");
    assert_eq!(exponential(us(3), 15_000, us(4)), 1, "3 and 4.5");
    assert_eq!(count(Waits::Fibonacci { unit: us(1), growth: stop(us(5)) }), 5, "1, 1, 2, 3, 5");
    let step = Increment::Up(us(1));
    assert_eq!(count(Waits::Incrementing { initial: us(1), step, growth: stop(us(3)) }), 3);
}

#[test]
fn list_ends_when_used_up_also_within_a_sum() {
    let list = Waits::Custom { delays: vec![ms(5), ms(50)], jitter: Jitter::None };
    assert_eq!(all(&Backoff::Always(list.clone())), [5, 50]);
    let fixed = Waits::Fixed { delay: ms(100), jitter: Jitter::None };
    assert_eq!(all(&Backoff::Sum(vec![fixed, list])), [105, 150]);
}

#[test]
fn further_draws_are_those_of_splitmix64() {
    let mut draws = Draws::new(0);
    // Published outputs for the seed 0.
    assert_eq!([draws.next(), draws.next()], [0, 0xE220_A839_7B1D_CDAF]);
}

#[test]
fn parts_of_a_sum_are_drawn_independently() {
    let part = || Waits::Fixed { delay: ms(100), jitter: Jitter::Full };
    let sum = Backoff::Sum(vec![part(), part()]);
    let drawn = waits(&sum, u64::MAX, 1)[0];
    assert!(drawn > ms(100) && drawn < ms(200), "the second is not the first again: {drawn:?}");
}

#[test]
fn code_has_its_own_sequence_and_the_count_continues() {
    let fixed = |delay| Waits::Fixed { delay: ms(delay), jitter: Jitter::None };
    let list = Waits::Custom { delays: vec![ms(1), ms(2), ms(3)], jitter: Jitter::None };
    let exhausted = CodeSet::of(&[Code::ResourceExhausted]);
    let backoff = Backoff::ByCode { default: list, codes: vec![(exhausted, fixed(900))] };
    let mut sequence = Sequence::default();
    let mut next = |code| sequence.next(&backoff, code, 0);
    assert_eq!(next(Code::Unavailable), Some(ms(1)));
    assert_eq!(next(Code::ResourceExhausted), Some(ms(900)));
    assert_eq!(next(Code::Unavailable), Some(ms(3)), "it is the third wait of the call");
    assert_eq!(next(Code::Unavailable), None);
}

#[test]
fn decorrelated_draws_from_three_times_the_wait_before() {
    let backoff = exponential(100, 20_000, 5_000, Jitter::Decorrelated);
    assert_eq!(waits(&backoff, u64::MAX, 5), [300, 900, 2_700, 5_000, 5_000].map(ms));
    assert_eq!(waits(&backoff, 0, 3), [100, 100, 100].map(ms));
}

#[test]
fn growth_is_not_rounded_at_each_step() {
    let backoff = Backoff::Always(Waits::Exponential {
        base: Duration::from_micros(1),
        multiplier: Ratio::from_bp(15_000),
        growth: Growth { max: ms(1), over_max: OverMax::Cap, jitter: Jitter::None },
    });
    // 1.5^n microseconds: rounding each step would stay at 1 for ever.
    let expected = [1, 1, 2, 3, 5, 7, 11, 17, 25, 38];
    assert_eq!(waits(&backoff, 0, 10), expected.map(Duration::from_micros));
}

#[test]
fn jitter_covers_its_interval_and_nothing_else() {
    let check = |jitter: Jitter, low: u64, high: u64| {
        let backoff = fixed(ms(100), jitter);
        assert_eq!(waits(&backoff, 0, 1), [ms(low)], "{jitter:?}");
        assert_eq!(waits(&backoff, u64::MAX, 1), [ms(high)], "{jitter:?}");
    };
    check(Jitter::Full, 0, 100);
    check(Jitter::Equal, 50, 100);
    check(Jitter::PlusMinus(Ratio::from_bp(2_500)), 75, 125);
    check(Jitter::Decorrelated, 100, 300);
}

#[test]
fn jitter_at_the_ceiling_never_exceeds_it() {
    let spread = |jitter| {
        let backoff = exponential(100, 20_000, 200, jitter);
        (waits(&backoff, 0, 5)[4], waits(&backoff, u64::MAX, 5)[4])
    };
    assert_eq!(spread(Jitter::Full), (ms(0), ms(200)));
    assert_eq!(spread(Jitter::Equal), (ms(100), ms(200)));
    assert_eq!(spread(Jitter::PlusMinus(Ratio::from_bp(5_000))), (ms(100), ms(200)));
    assert_eq!(spread(Jitter::Decorrelated), (ms(100), ms(200)));
}

#[test]
fn random_stays_below_its_upper_end() {
    let backoff = random(10, 20);
    assert_eq!(waits(&backoff, 0, 1), [ms(10)]);
    assert_eq!(waits(&backoff, u64::MAX, 1), [Duration::from_micros(19_999)]);
}

#[test]
fn restarted_sequence_begins_with_its_first_wait() {
    let backoff = exponential(25, 20_000, 250, Jitter::None);
    let mut sequence = Sequence::default();
    sequence.next(&backoff, Code::Unavailable, 0);
    sequence.next(&backoff, Code::Unavailable, 0);
    sequence.restart();
    assert_eq!(sequence.next(&backoff, Code::Unavailable, 0), Some(ms(25)));
}

fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        Just(Jitter::Full),
        Just(Jitter::Equal),
        (1_u32..=10_000).prop_map(|bp| Jitter::PlusMinus(Ratio::from_bp(bp))),
        Just(Jitter::Decorrelated),
    ]
}

fn any_wait() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), Just(1), Just(86_400_000_000), 0_u64..86_400_000_000].prop_map(Duration::from_micros)
}

fn any_waits() -> impl Strategy<Value = Waits> {
    let kind = (0..7, any_wait(), any_wait(), any_jitter(), any::<bool>(), 10_000_u32..=100_000);
    kind.prop_map(|(kind, a, b, jitter, stop, bp)| {
        let (min, max) = (a.min(b), a.max(b));
        let over_max = if stop { OverMax::Stop } else { OverMax::Cap };
        let growth = Growth { max, over_max, jitter };
        match kind {
            0 => Waits::None,
            1 => Waits::Fixed { delay: a, jitter },
            2 => Waits::Random { min, max, jitter },
            3 => {
                let step = if stop { Increment::Up(b) } else { Increment::Down(b) };
                Waits::Incrementing { initial: min, step, growth }
            }
            4 => Waits::Exponential { base: min, multiplier: Ratio::from_bp(bp), growth },
            5 => Waits::Fibonacci { unit: min, growth },
            _ => Waits::Custom { delays: vec![a, b], jitter },
        }
    })
}

fn ceiling(waits: &Waits) -> Duration {
    match waits {
        Waits::None => Duration::ZERO,
        Waits::Random { max, .. } => *max,
        Waits::Incrementing { growth, .. }
        | Waits::Exponential { growth, .. }
        | Waits::Fibonacci { growth, .. } => growth.max,
        Waits::Fixed { .. } | Waits::Custom { .. } => policy::WAIT.max,
    }
}

proptest! {
    #[test]
    fn no_sequence_overflows_or_exceeds_its_ceiling(
        parts in prop::collection::vec(any_waits(), 1..4),
        random in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        number in prop_oneof![Just(0_u32), Just(u32::MAX - 1), Just(u32::MAX), 0_u32..100],
        previous_us in prop_oneof![Just(0), Just(86_400_000_000), 0_u64..86_400_000_000],
    ) {
        let sequence = Sequence { waits: number, previous_us };
        for part in &parts {
            let wait = { sequence }.next(&Backoff::Always(part.clone()), Code::Unavailable, random);
            prop_assert!(wait.is_none_or(|wait| wait <= ceiling(part)), "{wait:?} of {part:?}");
        }
        let wait = { sequence }.next(&Backoff::Sum(parts), Code::Unavailable, random);
        prop_assert!(wait.is_none_or(|wait| wait <= policy::WAIT.max));
    }

    #[test]
    fn there_is_jitter_at_the_ceiling(number in 20_u32..u32::MAX, jitter in any_jitter()) {
        let backoff = exponential(25, 20_000, 250, jitter);
        let at = |random| Sequence { waits: number, previous_us: 250_000 }.next(&backoff, Code::Unavailable, random);
        prop_assert_eq!(at(0) == at(u64::MAX), jitter == Jitter::None);
    }
}
