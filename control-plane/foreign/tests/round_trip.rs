//! `from(to(rule))` is the rule less exactly what the report states.
#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::time::Duration;

use damper_core::{
    Backoff, BackoffStep, BreakerMode, Budget, Chain, CircuitBreaker, Code, CodeSet, Growth, Hedge,
    HedgeDelay, Jitter, Mode, OverMax, Pattern, Policy, Ratio, Retry, RetryBreaker, Rule, StopWhen, Waits,
};
use damper_foreign::from::{self, Source};
use damper_foreign::to::{Language, Options, Target, translate};
use damper_proto::{convert, v1};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select as one_of;

fn micros(from: u64, to: u64) -> impl Strategy<Value = Duration> {
    prop_oneof![
        3 => (from.div_ceil(1000)..=to / 1000).prop_map(Duration::from_millis),
        1 => (from..=to).prop_map(Duration::from_micros)
    ]
}

fn codes() -> impl Strategy<Value = CodeSet> {
    prop_oneof![
        Just(CodeSet::of(&[Code::Unavailable])),
        Just(CodeSet::of(&[Code::DeadlineExceeded])),
        vec(one_of(&Code::ALL[1..]), 0..17).prop_map(|codes| codes.into_iter().collect()),
    ]
}

fn jitter() -> impl Strategy<Value = Jitter> {
    one_of(vec![Jitter::None, Jitter::Full, Jitter::Equal, Jitter::PlusMinus(Ratio::from_bp(2000))])
}

fn waits() -> impl Strategy<Value = Waits> {
    let wait = || micros(0, 90_000_000);
    let growth = || (wait(), jitter(), one_of(vec![OverMax::Cap, OverMax::Stop]));
    let end = |least: Duration, (max, jitter, over_max): (Duration, Jitter, OverMax)| Growth {
        max: max.max(least),
        jitter,
        over_max,
    };
    prop_oneof![
        Just(Waits::None),
        (wait(), jitter()).prop_map(|(delay, jitter)| Waits::Fixed { delay, jitter }),
        (wait(), wait(), jitter()).prop_map(|(a, b, jitter)| Waits::Random {
            min: a.min(b),
            max: a.max(b),
            jitter
        }),
        (wait(), 10_000_u32..=100_000, growth()).prop_map(move |(base, factor, growth)| Waits::Exponential {
            base,
            multiplier: Ratio::from_bp(factor),
            growth: end(base, growth)
        }),
        (wait(), wait(), growth()).prop_map(move |(initial, step, growth)| Waits::Incrementing {
            initial,
            step: BackoffStep::Up(step),
            growth: end(initial, growth)
        }),
        (wait(), growth())
            .prop_map(move |(unit, growth)| Waits::Fibonacci { unit, growth: end(unit, growth) }),
        (vec(wait(), 1..5), jitter()).prop_map(|(delays, jitter)| Waits::Custom { delays, jitter }),
    ]
}

fn backoff() -> impl Strategy<Value = Backoff> {
    prop_oneof![
        4 => waits().prop_map(Backoff::Always),
        1 => vec(waits(), 1..4).prop_map(Backoff::Sum),
        1 => waits().prop_map(|default| Backoff::ByCode { default, codes: vec![(CodeSet::of(&[Code::Aborted]), Waits::None)] }),
    ]
}

fn retry() -> impl Strategy<Value = Retry> {
    let limit = || of(micros(1000, 60_000_000));
    (1_u32..=10, limit(), limit(), codes(), backoff()).prop_map(
        |(max_attempts, max_duration, per_attempt_timeout, codes, backoff)| Retry {
            max_attempts,
            max_duration,
            per_attempt_timeout,
            codes,
            backoff,
        },
    )
}

fn breaker() -> impl Strategy<Value = RetryBreaker> {
    (one_of(vec![BreakerMode::Credit, BreakerMode::Ratio]), 10_u32..=2000, 10_u32..=10_000).prop_map(
        |(mode, earn, ratio)| RetryBreaker {
            mode,
            earn: Ratio::from_bp(earn),
            ratio: Ratio::from_bp(ratio),
            ..RetryBreaker::default()
        },
    )
}

fn hedge() -> impl Strategy<Value = Hedge> {
    (micros(1000, 60_000_000), 1_u32..=4)
        .prop_map(|(delay, max_hedges)| Hedge { delay: HedgeDelay::Fixed(delay), max_hedges })
}

fn policy() -> impl Strategy<Value = Policy> {
    let mode = one_of(vec![Mode::Enforce, Mode::Enforce, Mode::Enforce, Mode::Off, Mode::Observe]);
    let budget = (100_u32..=10_000, 0_u32..=1000)
        .prop_map(|(ratio, min_per_second)| Budget { ratio: Ratio::from_bp(ratio), min_per_second });
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0_u32..=4 << 20);
    let limits = (of(micros(1000, 60_000_000)), of(budget), of(breaker()), any::<bool>(), any::<bool>());
    (mode, of(retry()), of(hedge()), limits, flags).prop_map(|(mode, retry, hedge, limits, flags)| {
        let (timeout, budget, retry_breaker, stop, circuit) = limits;
        let (ignore_retry_flag, ignore_no_more_retry, propagate_baggage, call_id, replay_limit) = flags;
        let percent = damper_core::Percent::from_hundredths(5000);
        Policy {
            mode,
            timeout,
            retry,
            hedge,
            retry_breaker,
            budget,
            stop_when: stop.then_some(StopWhen {
                latency_above_percentile: None,
                success_rate_below: Some(percent),
                min_samples: 20,
            }),
            circuit_breaker: circuit.then(CircuitBreaker::default),
            chain: Chain { ignore_retry_flag, ignore_no_more_retry, propagate_baggage },
            replay_limit,
            hold_unary: false,
            call_id,
        }
    })
}

/// Rules of one callee, by method; a valid rule each.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let methods = ["*", "p.S/*", "p.S/M", "p.S/N"];
    vec(policy(), 1..=4).prop_map(move |policies| {
        let rule = |(policy, method): (Policy, &&str)| {
            Rule::new(Pattern::parse("*", "*", "b", method).unwrap(), policy, 7).ok()
        };
        policies.into_iter().zip(&methods).filter_map(rule).collect()
    })
}

/// Checks that each written rule is read back as the report states, and no other is.
fn check(target: Target, source: Source, rules: &[Rule], options: &Options) {
    let translation = translate(target, rules, options).unwrap();
    let text: String = translation
        .documents
        .iter()
        .map(|document| format!("---\n{}", serde_json::to_string(document).unwrap()))
        .map(|text| text + "\n")
        .collect();
    let mut readings = Vec::new();
    if !translation.documents.is_empty() {
        let names = from::Options {
            callee: Some("b".to_owned()),
            service: Some("p.S".to_owned()),
            ..from::Options::default()
        };
        readings.push(from::read(source, &text, &names).unwrap());
    }
    from::share_limits(source, &mut readings);
    let found: Vec<v1::Rule> = readings
        .iter()
        .flat_map(|reading| &reading.documents)
        .flat_map(|document| &document.content)
        .map(|found| found.rule.clone())
        .collect();
    assert_eq!(translation.reports.len(), rules.len());
    let read_back = |method: &str| {
        found
            .iter()
            .find(|rule| rule.key.as_ref().unwrap().callee_method == method)
            .map(|rule| convert::policy(rule.policy.as_ref().unwrap()).unwrap())
    };
    for report in &translation.reports {
        let method = report.rule.rsplit(' ').next().unwrap();
        if !report.written {
            let is_filler = matches!(target, Target::Istio | Target::Envoy) && method == "*";
            assert!(is_filler || read_back(method).is_none(), "{} was written: {text}", report.rule);
            continue;
        }
        let mut left = report.left();
        left["mode"] = "observe".into();
        let mut faults = damper_core::Faults::none();
        let expected =
            damper_document::read(left.clone(), |wire: v1::Policy| convert::policy(&wire), &mut faults);
        let expected = expected.unwrap_or_else(|| panic!("{faults} in {left}"));
        assert_eq!(
            read_back(method),
            Some(expected),
            "{}: {left}\n{text}\n{:#?}",
            report.rule,
            report.settings
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn grpc_reads_back_as_the_report_states(rules in rules(), hedging in any::<bool>()) {
        let language = if hedging { Language::Hedging } else { Language::Other };
        check(Target::Grpc, Source::Grpc, &rules, &Options { language, ..Options::default() });
    }

    #[test]
    fn istio_reads_back_as_the_report_states(rules in rules(), chain_flag in any::<bool>()) {
        check(Target::Istio, Source::Istio, &rules, &Options { chain_flag, ..Options::default() });
    }

    #[test]
    fn envoy_reads_back_as_the_report_states(rules in rules(), chain_flag in any::<bool>()) {
        check(Target::Envoy, Source::Envoy, &rules, &Options { chain_flag, ..Options::default() });
    }

    #[test]
    fn kitex_reads_back_as_the_report_states(rules in rules()) {
        check(Target::Kitex, Source::Kitex, &rules, &Options::default());
    }
}
