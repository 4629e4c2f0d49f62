//! Waits before retries: each kind, sums and other waits for given codes.

use std::time::Duration;

use damper_core::{Backoff, BackoffStep, CodeSet, Faults, Growth, Jitter, OverMax, Waits};
use prost::Message as _;

use super::{seconds, spoil_retry};
use crate::v1::{self, backoff::Kind};

const KINDS: &str = "none, fixed, random, incrementing, exponential, fibonacci or custom";
const WAIT: &str = "must be between 0ms and 24h, not";

fn wrap(kind: Kind) -> v1::Backoff {
    v1::Backoff { kind: Some(kind) }
}

fn fixed(delay: Option<prost_types::Duration>) -> v1::Backoff {
    wrap(Kind::Fixed(v1::FixedBackoff { delay, ..Default::default() }))
}

fn sum(parts: Vec<v1::Backoff>) -> v1::Backoff {
    wrap(Kind::Sum(v1::SumBackoff { parts }))
}

fn by_code(default: Option<v1::Backoff>, codes: Vec<v1::CodeBackoff>) -> v1::Backoff {
    wrap(Kind::ByCode(Box::new(v1::ByCodeBackoff { default: default.map(Box::new), codes })))
}

fn for_codes(codes: &[i32], backoff: Option<v1::Backoff>) -> v1::CodeBackoff {
    v1::CodeBackoff { codes: codes.to_vec(), backoff }
}

/// A rule with this backoff has exactly these faults, by their path below the backoff.
fn refused(wire: v1::Backoff, expected: &[(&str, &str)]) {
    let at = |path: &str| match path {
        "" => "policy.retry.backoff".to_owned(),
        path => format!("policy.retry.backoff.{path}"),
    };
    let expected: Vec<_> = expected.iter().map(|(path, problem)| (at(path), *problem)).collect();
    let expected: Vec<_> = expected.iter().map(|(path, problem)| (path.as_str(), *problem)).collect();
    spoil_retry(|retry| retry.backoff = Some(wire), &expected);
}

fn read(wire: &v1::Backoff) -> Backoff {
    let mut faults = Faults::none();
    let backoff = super::super::backoff::backoff(wire, &mut faults);
    assert!(faults.is_empty(), "{faults}");
    backoff
}

#[test]
fn waits_without_a_default_are_required() {
    const SAID: &str = "required (0ms to 24h)";
    refused(
        v1::Backoff { kind: None },
        &[(
            "",
            "required (none, fixed, random, incrementing, exponential, fibonacci, custom, sum or by_code)",
        )],
    );
    refused(fixed(None), &[("fixed.delay", SAID)]);
    refused(wrap(Kind::Random(Default::default())), &[("random.min", SAID), ("random.max", SAID)]);
    refused(
        wrap(Kind::Incrementing(Default::default())),
        &[("incrementing.initial", SAID), ("incrementing.step", "required (-24h to 24h)")],
    );
    refused(wrap(Kind::Fibonacci(Default::default())), &[("fibonacci.unit", SAID)]);
    refused(
        wrap(Kind::Custom(Default::default())),
        &[("custom.delays", "must have between 1 and 32 entries, not 0")],
    );
    refused(
        wrap(Kind::Sum(Default::default())),
        &[("sum.parts", "must have between 1 and 32 entries, not 0")],
    );
    refused(by_code(None, vec![]), &[("by_code.codes", "must have between 1 and 32 entries, not 0")]);
}

#[test]
fn defaults_of_growing_waits_are_the_engines() {
    let exponential = |base| wrap(Kind::Exponential(v1::ExponentialBackoff { base, ..Default::default() }));
    assert_eq!(read(&exponential(None)), Backoff::default());
    let Backoff::Always(Waits::Exponential { base, growth, .. }) = read(&exponential(seconds(3, 0))) else {
        panic!("not exponential")
    };
    assert_eq!((base, growth.max), (Duration::from_secs(3), Duration::from_secs(3)));

    let day = Duration::from_secs(24 * 3600);
    let growth = Growth { max: day, over_max: OverMax::Cap, jitter: Jitter::None };
    let unit = v1::FibonacciBackoff { unit: seconds(1, 0), ..Default::default() };
    let waits = Waits::Fibonacci { unit: Duration::from_secs(1), growth };
    assert_eq!(read(&wrap(Kind::Fibonacci(unit))), Backoff::Always(waits));
    let shorter = v1::IncrementingBackoff {
        initial: seconds(1, 0),
        step: seconds(0, -5_000_000),
        ..Default::default()
    };
    let step = BackoffStep::Down(Duration::from_millis(5));
    let waits = Waits::Incrementing { initial: Duration::from_secs(1), step, growth };
    assert_eq!(read(&wrap(Kind::Incrementing(shorter))), Backoff::Always(waits));
}

#[test]
fn each_wait_is_refused_by_its_own_name() {
    let long = seconds(48 * 3600, 0);
    let out = |sign: &str| format!("{WAIT} {sign}2d");
    refused(fixed(long), &[("fixed.delay", &out(""))]);
    let random = v1::RandomBackoff { min: long, max: seconds(-1, 0), ..Default::default() };
    refused(wrap(Kind::Random(random)), &[("random.min", &out("")), ("random.max", &format!("{WAIT} -1s"))]);
    let random = v1::RandomBackoff { min: seconds(2, 0), max: seconds(1, 0), ..Default::default() };
    refused(wrap(Kind::Random(random)), &[("random.max", "must be at least min (2s), not 1s")]);
    for (step, shown) in [(48, "2d"), (-48, "-2d")] {
        let incrementing = v1::IncrementingBackoff {
            initial: seconds(2, 0),
            step: seconds(step * 3600, 0),
            max: seconds(1, 0),
            over_max: 9,
            jitter: 9,
            ..Default::default()
        };
        refused(
            wrap(Kind::Incrementing(incrementing)),
            &[
                ("incrementing.over_max", "must be cap or stop, not 9"),
                ("incrementing.jitter", "must be none, full, equal, plus_minus or decorrelated, not 9"),
                ("incrementing.step", &format!("must be between -24h and 24h, not {shown}")),
                ("incrementing.max", "must be at least initial (2s), not 1s"),
            ],
        );
    }
    let step =
        v1::IncrementingBackoff { initial: seconds(0, 0), step: seconds(0, -1_500), ..Default::default() };
    refused(
        wrap(Kind::Incrementing(step)),
        &[("incrementing.step", "must be in steps of 1us (-24h to 24h), not -1500ns")],
    );
    let fibonacci =
        v1::FibonacciBackoff { unit: seconds(2, 0), max: long, over_max: -1, ..Default::default() };
    refused(
        wrap(Kind::Fibonacci(fibonacci)),
        &[("fibonacci.over_max", "must be cap or stop, not -1"), ("fibonacci.max", &out(""))],
    );
    let delays = [seconds(1, 0), long, seconds(0, 1), seconds(-48 * 3600, 0)].into_iter().flatten().collect();
    refused(
        wrap(Kind::Custom(v1::CustomBackoff { delays, ..Default::default() })),
        &[
            ("custom.delays[2]", "must be in steps of 1us (0ms to 24h), not 1ns"),
            ("custom.delays[3]", &out("-")),
            ("custom.delays[1]", &out("")),
        ],
    );
}

#[test]
fn jitter_share_goes_with_plus_minus_in_every_kind() {
    let share = Some(0.5);
    let kinds = [
        Kind::Fixed(v1::FixedBackoff { delay: seconds(1, 0), jitter_share: share, jitter: 0 }),
        Kind::Random(v1::RandomBackoff {
            min: seconds(1, 0),
            max: seconds(1, 0),
            jitter_share: share,
            jitter: 0,
        }),
        Kind::Incrementing(v1::IncrementingBackoff {
            initial: seconds(1, 0),
            step: seconds(1, 0),
            jitter_share: share,
            ..Default::default()
        }),
        Kind::Exponential(v1::ExponentialBackoff { jitter_share: share, ..Default::default() }),
        Kind::Fibonacci(v1::FibonacciBackoff {
            unit: seconds(1, 0),
            jitter_share: share,
            ..Default::default()
        }),
        Kind::Custom(v1::CustomBackoff {
            delays: seconds(1, 0).into_iter().collect(),
            jitter_share: share,
            jitter: 0,
        }),
    ];
    let names = ["fixed", "random", "incrementing", "exponential", "fibonacci", "custom"];
    for (kind, name) in kinds.into_iter().zip(names) {
        refused(wrap(kind), &[(&format!("{name}.jitter_share"), "applies only with jitter: plus_minus")]);
    }
}

#[test]
fn a_sum_or_by_code_has_no_sum_or_by_code_within() {
    let one = || fixed(seconds(1, 0));
    let nested = |inner: &str, outer: &str| format!("must be {KINDS}, not {inner} within {outer}");
    refused(
        sum(vec![one(), sum(vec![one()]), by_code(None, vec![])]),
        &[("sum.parts[1]", &nested("a sum", "a sum")), ("sum.parts[2]", &nested("by_code", "a sum"))],
    );
    refused(
        by_code(Some(sum(vec![])), vec![for_codes(&[8], Some(by_code(None, vec![])))]),
        &[
            ("by_code.default", &nested("a sum", "by_code")),
            ("by_code.codes[0].backoff", &nested("by_code", "by_code")),
        ],
    );
    refused(sum(vec![v1::Backoff { kind: None }]), &[("sum.parts[0]", &format!("required ({KINDS})"))]);
}

#[test]
fn parts_and_entries_are_refused_by_their_place() {
    refused(
        by_code(
            Some(fixed(None)),
            vec![
                for_codes(&[8, 0, 99], Some(fixed(seconds(-1, 0)))),
                for_codes(&[], None),
                for_codes(&[14], Some(fixed(seconds(1, 0)))),
            ],
        ),
        &[
            ("by_code.default.fixed.delay", "required (0ms to 24h)"),
            ("by_code.codes[0].codes[1]", "OK is not a failure"),
            ("by_code.codes[0].codes[2]", "must be a gRPC status code, not 99"),
            ("by_code.codes[0].backoff.fixed.delay", &format!("{WAIT} -1s")),
            ("by_code.codes[1].backoff", "required"),
            ("by_code.codes[1].codes", "must contain at least one code, and not OK"),
        ],
    );
    let decorrelated =
        v1::ExponentialBackoff { jitter: v1::Jitter::Decorrelated.into(), ..Default::default() };
    refused(
        sum(vec![fixed(None), wrap(Kind::Exponential(decorrelated))]),
        &[
            ("sum.parts[0].fixed.delay", "required (0ms to 24h)"),
            (
                "sum.parts[1].exponential.jitter",
                "decorrelated is not allowed in a sum: it depends on the wait before",
            ),
        ],
    );
}

#[test]
fn the_default_of_by_code_is_the_default_backoff() {
    let wire = by_code(None, vec![for_codes(&[8, 8], Some(wrap(Kind::None(v1::NoBackoff {}))))]);
    let codes = vec![(CodeSet::of(&[damper_core::Code::ResourceExhausted]), Waits::None)];
    assert_eq!(read(&wire), Backoff::ByCode { default: Waits::default(), codes });
}

#[test]
fn a_list_that_is_too_long_is_refused_in_few_words() {
    let wrong = vec![fixed(None); 100_000];
    let mut faults = Faults::none();
    super::super::within("backoff", &mut faults, |faults| {
        super::super::backoff::backoff(&sum(wrong), faults)
    });
    assert_eq!(faults.len(), 32);
    let delays = vec![prost_types::Duration { seconds: 1, nanos: 0 }; 33];
    refused(
        wrap(Kind::Custom(v1::CustomBackoff { delays, ..Default::default() })),
        &[("custom.delays", "must have between 1 and 32 entries, not 33")],
    );
    let mut parts = vec![fixed(seconds(1, 0)); 33];
    parts[0] = fixed(None);
    refused(
        sum(parts),
        &[
            ("sum.parts[0].fixed.delay", "required (0ms to 24h)"),
            ("sum.parts", "must have between 1 and 32 entries, not 33"),
        ],
    );
}

#[test]
fn a_backoff_nested_without_end_is_not_even_decoded() {
    let mut nested = fixed(seconds(1, 0));
    for _ in 0..200 {
        nested = sum(vec![nested]);
    }
    let error = v1::Backoff::decode(nested.encode_to_vec().as_slice()).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
}
