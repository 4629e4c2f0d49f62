//! The text of hedges, backoffs and the other settings of a policy.

use std::time::Duration;

use damper_core::{
    Backoff, BackoffStep, BreakerMode, Budget, Code, CodeSet, Growth, Hedge, HedgeDelay, Jitter, OverMax,
    Percent, Policy, Ratio, StopWhen, Waits,
};

use super::{KEY, check, check_policy, parse, read_one, refused, to_json, to_yaml};

/// What the engine makes of a policy's text; the text of the result says the same.
fn policy(text: &str) -> Policy {
    let text = format!("{KEY}policy: {text}\n");
    let rule = read_one(&text);
    for again in [to_yaml(std::slice::from_ref(&rule)), to_json(std::slice::from_ref(&rule))] {
        assert_eq!(read_one(&again), rule, "{again}");
    }
    check(&parse(&text).unwrap()).unwrap().rules.remove(0).policy().clone()
}

fn backoff(text: &str) -> Backoff {
    policy(&format!("{{mode: off, retry: {{backoff: {text}}}}}")).retry.unwrap().backoff
}

/// A rule with this backoff has exactly these problems, by their path below the backoff.
fn check_backoff(text: &str, expected: &[(&str, &str)]) {
    let at: Vec<_> = expected.iter().map(|(path, _)| format!("policy.retry.backoff{path}")).collect();
    let expected: Vec<_> =
        at.iter().map(String::as_str).zip(expected.iter().map(|(_, problem)| *problem)).collect();
    check_policy(&format!("{{mode: off, retry: {{backoff: {text}}}}}"), &expected);
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn backoff_text_round_trips() {
    let jitter = Jitter::None;
    assert_eq!(backoff("{none: {}}"), Backoff::Always(Waits::None));
    assert_eq!(
        backoff("{random: {min: 1ms, max: 5ms, jitter: plus_minus, jitter_share: 0.25}}"),
        Backoff::Always(Waits::Random {
            min: ms(1),
            max: ms(5),
            jitter: Jitter::PlusMinus(Ratio::from_bp(2500))
        })
    );
    assert_eq!(
        backoff("{custom: {delays: [10ms, 1s, 1500us]}}"),
        Backoff::Always(Waits::Custom {
            delays: vec![ms(10), ms(1000), Duration::from_micros(1500)],
            jitter
        })
    );
    assert_eq!(
        backoff("{incrementing: {initial: 100ms, step: -5ms, max: 1m, over_max: stop}}"),
        Backoff::Always(Waits::Incrementing {
            initial: ms(100),
            step: BackoffStep::Down(ms(5)),
            growth: Growth { max: ms(60_000), over_max: OverMax::Stop, jitter },
        })
    );
    let growth = Growth { max: ms(86_400_000), over_max: OverMax::Cap, jitter };
    assert_eq!(
        backoff("{sum: {parts: [{fixed: {delay: 10ms}}, {fibonacci: {unit: 2ms}}]}}"),
        Backoff::Sum(vec![Waits::Fixed { delay: ms(10), jitter }, Waits::Fibonacci { unit: ms(2), growth }])
    );
}

#[test]
fn backoff_by_code_text_round_trips() {
    let text = "{by_code: {default: {fixed: {delay: 10ms}}, codes: [{codes: [RESOURCE_EXHAUSTED], \
                backoff: {exponential: {base: 1s, max: 10s}}}]}}";
    let growth = Growth { max: ms(10_000), over_max: OverMax::Cap, jitter: Jitter::Full };
    let exponential = Waits::Exponential { base: ms(1000), multiplier: Waits::DEFAULT_MULTIPLIER, growth };
    let default = Waits::Fixed { delay: ms(10), jitter: Jitter::None };
    let codes = vec![(CodeSet::of(&[Code::ResourceExhausted]), exponential)];
    assert_eq!(backoff(text), Backoff::ByCode { default, codes });
}

#[test]
fn hedge_and_gate_text_round_trips() {
    let hedge = |text: &str| policy(&format!("{{mode: off, hedge: {text}}}")).hedge.unwrap();
    let at = Percent::from_hundredths(9_500);
    let delay = HedgeDelay::Percentile { at, min: ms(1), max: ms(1000) };
    assert_eq!(
        hedge("{delay: {percentile: {at: 95, max: 1s}}, max_hedges: 2}"),
        Hedge { delay, max_hedges: 2 }
    );
    let delay = HedgeDelay::Fixed(ms(20));
    assert_eq!(hedge("{delay: {fixed: 20ms}}"), Hedge { delay, max_hedges: 1 });

    let policy = policy(
        "{mode: off, budget: {ratio: 0.15}, stop_when: {success_rate_below: 99.95}, retry_breaker: {mode: ratio}, \
         circuit_breaker: {open_for: 2s}, chain: {propagate_baggage: true}, hold_unary: false, call_id: true}",
    );
    assert_eq!(policy.budget, Some(Budget { ratio: Ratio::from_bp(1500), ..Budget::default() }));
    let success_rate_below = Some(Percent::from_hundredths(9_995));
    assert_eq!(policy.stop_when, Some(StopWhen { success_rate_below, ..StopWhen::default() }));
    assert_eq!(policy.retry_breaker.unwrap().mode, BreakerMode::Ratio);
    assert_eq!(policy.circuit_breaker.unwrap().open_for, ms(2000));
    assert!(policy.chain.propagate_baggage && policy.call_id && !policy.hold_unary);
}

#[test]
fn wrong_settings_are_refused_by_field_value_and_bound() {
    const DURATION: &str = "is not a duration with its unit, such as 250ms, 2s or 1h";
    check_backoff(
        "{custom: {delays: [10ms, soon, 25h, -1s, later]}}",
        &[
            (".custom.delays[1]", &format!("\"soon\" {DURATION}")),
            (".custom.delays[4]", &format!("\"later\" {DURATION}")),
            (".custom.delays[3]", "must be between 0ms and 24h, not -1s"),
            (".custom.delays[2]", "must be between 0ms and 24h, not 25h"),
        ],
    );
    check_backoff(
        "{incrementing: {initial: 1s, step: -25h, over_max: throw}}",
        &[
            (".incrementing.over_max", r#"must be one of cap, stop, not "throw""#),
            (".incrementing.step", "must be between -24h and 24h, not -25h"),
        ],
    );
    check_backoff(
        "{sum: {parts: [{fixed: {delay: 1s}}, {sum: {parts: []}}]}}",
        &[(
            ".sum.parts[1]",
            "must be none, fixed, random, incrementing, exponential, fibonacci or custom, not a sum within a sum",
        )],
    );
    check_policy(
        "{mode: off, hedge: {delay: {percentile: {at: 95.005}}, max_hedges: 5}, retry_breaker: {mode: on}}",
        &[
            ("policy.retry_breaker.mode", r#"must be one of ratio, credit, not "on""#),
            ("policy.hedge.delay.percentile.at", "must be in steps of 0.01 (50 to 99.9), not 95.005"),
            ("policy.hedge.max_hedges", "must be between 1 and 4, not 5"),
        ],
    );
    check_policy(
        "{mode: off, hedge: {delay: {fixed: 20}}}",
        &[(
            "policy.hedge.delay.fixed",
            "invalid type: integer `20`, expected a duration with its unit, such as 250ms, 2s or 1h",
        )],
    );
    check_policy(
        "{mode: off, hedge: {delay: {fixed: ~}}}",
        &[(
            "policy.hedge.delay.fixed",
            "invalid type: null, expected a duration with its unit, such as 250ms, 2s or 1h",
        )],
    );
    check_policy(
        "{mode: off, hold_unary: true}",
        &[("policy.hold_unary", "needs an exact callee_method, not *")],
    );
}

#[test]
fn wrong_list_entry_is_named_once_and_hides_nothing() {
    const KINDS: &str = "none, fixed, random, exponential, incrementing, fibonacci, custom, sum, by_code";
    check_backoff(
        "{sum: {parts: [3, {fixed: 4}, {fixed: {delay: -1s}}, {linear: {}}, {}, ~]}}",
        &[
            (".sum.parts[0]", &format!("must be a map with one of {KINDS}")),
            (".sum.parts[1].fixed", "must be a map, not 4"),
            (
                ".sum.parts[3]",
                "unknown variant `linear`, expected one of `none`, `fixed`, `random`, `exponential`, \
                 `incrementing`, `fibonacci`, `custom`, `sum`, `by_code`",
            ),
            (".sum.parts[4]", &format!("must be a map with one of {KINDS}")),
            (".sum.parts[2].fixed.delay", "must be between 0ms and 24h, not -1s"),
            (
                ".sum.parts[5]",
                "required (none, fixed, random, incrementing, exponential, fibonacci or custom)",
            ),
        ],
    );
    check_backoff(
        "{by_code: {codes: [7, {codes: [NOPE], backof: {}}, ~, {codes: [OK], backoff: {none: {}}}]}}",
        &[
            (".by_code.codes[0]", "must be a map, not 7"),
            (".by_code.codes[1].backof", "unknown field `backof`, expected `codes` or `backoff`"),
            (
                ".by_code.codes[1].codes[0]",
                "must be one of OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, \
                 ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, \
                 OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED, not \"NOPE\"",
            ),
            (".by_code.codes[2]", "must be a map, not null"),
            (".by_code.codes[1].backoff", "required"),
            (".by_code.codes[3].codes[0]", "OK is not a failure"),
        ],
    );
}

#[test]
fn nested_list_faults_have_their_own_line() {
    let text = format!(
        "{KEY}policy:\n  mode: off\n  retry:\n    backoff:\n      sum:\n        parts:\n        - fixed: {{ delay: 1s }}\n        \
         - custom:\n            delays:\n            - 1s\n            - 25h\n"
    );
    assert_eq!(
        refused(&text).to_string(),
        "document 1, line 13: policy.retry.backoff.sum.parts[1].custom.delays[1]: must be between 0ms and 24h, not 25h"
    );
}

#[test]
fn backoffs_nested_without_end_are_refused() {
    let nested = |depth: usize| {
        let (open, close) = ("{sum: {parts: [".repeat(depth), "]}}".repeat(depth));
        format!("{KEY}policy: {{mode: off, retry: {{backoff: {open}{{none: {{}}}}{close}}}}}\n")
    };
    assert!(parse(&nested(1)).is_ok());
    for depth in [2, 5, 50, 5_000] {
        let error = refused(&nested(depth));
        assert_eq!(error.problems.len(), 1, "{error}");
    }
}
