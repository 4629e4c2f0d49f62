use std::sync::atomic::AtomicI64;

use proptest::prelude::*;

use super::*;

const EARN: Ratio = Ratio::from_bp(200);

fn terms(purse: &Purse) -> Terms {
    Terms::of_traffic(purse, EARN)
}

fn held(purse: &Purse) -> u64 {
    purse.load().credit
}

/// Returns terms for this many tokens.
fn purse(tokens: u64) -> Purse {
    let purse = Purse::default();
    purse.set_cap(EARN, tokens * 50);
    purse
}

#[test]
fn fifty_first_successes_pay_for_one_retry_that_fails() {
    let purse = purse(10);
    for _ in 0..49 {
        purse.earn(terms(&purse));
        assert!(!purse.pay(terms(&purse)));
    }
    purse.earn(terms(&purse));
    assert!(purse.pay(terms(&purse)) && !purse.pay(terms(&purse)));
}

#[test]
fn retry_that_succeeds_is_free() {
    let purse = purse(10);
    (0..50).for_each(|_| purse.earn(terms(&purse)));
    for _ in 0..100 {
        assert!(purse.pay(terms(&purse)));
        purse.give_back(terms(&purse));
    }
}

#[test]
fn credit_stays_below_the_cap_and_a_lower_cap_applies_at_once() {
    let purse = purse(2);
    (0..1_000).for_each(|_| purse.earn(terms(&purse)));
    assert_eq!(held(&purse), 2 * TOKEN);
    purse.set_cap(EARN, 75);
    assert!(purse.pay(terms(&purse)));
    assert!(!purse.pay(terms(&purse)), "half a token is left");
    purse.give_back(terms(&purse));
    assert_eq!(held(&purse), 3 * TOKEN / 2);
    purse.set_cap(EARN, u64::MAX);
    assert_eq!(terms(&purse).cap, CAP_MAX * CAP_STEP);
}

#[test]
fn success_streak_fills_a_purse_of_fixed_size() {
    let (purse, floor) = (Purse::default(), Terms::floor(EARN));
    (0..9).for_each(|_| purse.earn(floor));
    purse.fail();
    (0..9).for_each(|_| purse.earn(floor));
    assert!(!purse.pay(floor), "a failure ends the row");
    purse.earn(floor);
    assert!(purse.pay(floor) && !purse.pay(floor));
    let (purse, three) = (Purse::default(), Terms::tokens(3));
    (0..29).for_each(|_| purse.earn(three));
    assert!(purse.pay(three) && purse.pay(three) && !purse.pay(three));
}

#[test]
fn traffic_terms_earn_nothing_for_streaks() {
    let purse = purse(10);
    (0..40).for_each(|_| purse.earn(terms(&purse)));
    assert!(!purse.pay(terms(&purse)));
}

#[test]
fn owed_retry_ends_as_the_next_first_attempt() {
    let purse = purse(10);
    (0..150).for_each(|_| purse.earn(terms(&purse)));
    for _ in 0..3 {
        assert!(purse.pay(terms(&purse)));
        purse.owe();
    }
    purse.earn(terms(&purse));
    assert_eq!(held(&purse), TOKEN + 200, "one comes back");
    (0..2).for_each(|_| purse.fail());
    (0..9).for_each(|_| purse.earn(terms(&purse)));
    assert_eq!(held(&purse), TOKEN + 2_000, "two are lost");
    (0..100).for_each(|_| purse.owe());
    assert_eq!(purse.load().owed, OWED_MAX);
}

#[test]
fn all_fields_of_the_word_are_kept_apart() {
    let full = Held { credit: CAP_MAX * CAP_STEP, cap: CAP_MAX * CAP_STEP, row: ROW - 1, owed: OWED_MAX };
    for field in 0..4 {
        let of = |value: u64, at: u32| if at == field { value } else { 0 };
        let one = Held {
            credit: of(full.credit, 0),
            cap: of(full.cap, 1),
            row: of(full.row, 2),
            owed: of(full.owed, 3),
        };
        let back = Held::unpack(one.pack());
        assert_eq!((back.credit, back.cap, back.row, back.owed), (one.credit, one.cap, one.row, one.owed));
    }
}

/// Events of a purse, in any order.
#[derive(Clone, Copy, Debug)]
enum Event {
    Earn,
    Fail,
    Pay,
    GiveBack,
    Lose,
    Calls(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Earn),
        1 => Just(Event::Fail),
        4 => Just(Event::Pay),
        2 => Just(Event::GiveBack),
        3 => Just(Event::Lose),
        1 => (0_u64..5_000).prop_map(Event::Calls),
    ]
}

/// Plays events on a shared purse; returns the tokens in excess of what was earned.
fn play(purse: &Purse, terms: impl Fn(&Purse) -> Terms, events: &[Event], up: &AtomicI64) {
    let mut in_flight = 0;
    for event in events {
        match event {
            Event::Earn => {
                up.fetch_sub(200, Ordering::SeqCst);
                purse.earn(terms(purse));
            }
            Event::Fail => purse.fail(),
            Event::Pay => {
                if purse.pay(terms(purse)) {
                    up.fetch_add(10_000, Ordering::SeqCst);
                    in_flight += 1;
                }
            }
            Event::GiveBack if in_flight > 0 => {
                in_flight -= 1;
                up.fetch_sub(10_000, Ordering::SeqCst);
                purse.give_back(terms(purse));
            }
            Event::Lose if in_flight > 0 => in_flight -= 1,
            Event::Calls(calls) => purse.set_cap(EARN, *calls),
            Event::GiveBack | Event::Lose => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Failed and unfinished retries cost no more than what first successes earned.
    #[test]
    fn bound_holds_under_any_interleaving(
        threads in proptest::collection::vec(proptest::collection::vec(event(), 1..400), 1..5),
        cap in 0_u64..5_000,
    ) {
        let (purse, up) = (Purse::default(), AtomicI64::new(0));
        purse.set_cap(EARN, cap);
        std::thread::scope(|scope| {
            for events in &threads {
                let (purse, up) = (&purse, &up);
                scope.spawn(move || play(purse, terms, events, up));
            }
        });
        let spent = up.into_inner() + i64::try_from(held(&purse)).unwrap();
        prop_assert!(spent <= 0, "{spent}");
    }

    /// The same with a purse of one token, which ten successes in a row fill too.
    #[test]
    fn floor_is_one_token_per_ten_successes_at_most(events in proptest::collection::vec(event(), 1..2_000)) {
        let (purse, up) = (Purse::default(), AtomicI64::new(0));
        play(&purse, |_| Terms::floor(EARN), &events, &up);
        let rows = events.iter().filter(|event| matches!(event, Event::Earn)).count() as i64 / 10;
        prop_assert!(up.into_inner() + i64::try_from(held(&purse)).unwrap() <= rows * 10_000);
        prop_assert!(held(&purse) <= TOKEN);
    }
}
