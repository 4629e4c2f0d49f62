use damper_core::{Mode, Pattern, Rule};
use proptest::prelude::*;

use super::{Error, Manifest, check, json, parse, parse_bytes, to_json, to_yaml, yaml};
use crate::convert::tests::any::{any_guard, any_policy, any_queue};
use crate::{convert, v1};

mod guards;
mod queues;
mod settings;

const EXAMPLE: &str = r#"
kind: Rule
key: { caller_service: checkout, caller_cluster: "*", callee_service: inventory, callee_method: inventory.v1.Inventory/Reserve }
policy:
  mode: observe
  retry: { max_attempts: 3, codes: { allow: [UNAVAILABLE] }, backoff: { exponential: { base: 25ms, max: 250ms, jitter: full } } }
  retry_breaker: { ratio: 0.1 }
"#;

const KEY: &str =
    "kind: Rule\nkey: {caller_service: a, caller_cluster: '*', callee_service: c, callee_method: '*'}\n";

fn refused(text: &str) -> Error {
    parse(text).expect_err(text)
}

/// A rule with this policy has exactly these problems.
fn check_policy(policy: &str, expected: &[(&str, &str)]) {
    let error = refused(&format!("{KEY}policy: {policy}\n"));
    let found: Vec<_> = error.problems.iter().map(|p| (p.path.as_str(), p.problem.as_str())).collect();
    assert_eq!(found, expected, "{policy}");
    assert!(error.problems.iter().all(|p| p.document == Some(1) && p.line == Some(3)), "{error}");
}

#[test]
fn the_example_of_the_design_is_read() {
    let documents = parse(EXAMPLE).unwrap();
    assert_eq!(documents.len(), 1);
    assert_eq!((documents[0].number, documents[0].line), (1, 2));
    let rules = check(&documents).unwrap().rules;
    assert_eq!(rules[0].policy().mode, Mode::Observe);
    assert_eq!(rules[0].policy().retry, Some(damper_core::Retry::default()));
    assert_eq!(rules[0].pattern().to_string(), "checkout * inventory inventory.v1.Inventory/Reserve");
}

#[test]
fn json_is_read_with_tabs_too() {
    let text = "{\n\t\"kind\": \"Rule\",\n\t\"key\": {\"caller_service\": \"a\", \"caller_cluster\": \"*\",\n\t\t\"callee_service\": \"c\", \"callee_method\": \"*\"},\n\t\"policy\": {\"mode\": \"off\", \"timeout\": \"2s\"}\n}";
    assert_eq!(check(&parse(text).unwrap()).unwrap().rules[0].policy().mode, Mode::Off);
    let list = format!("[{text},\n{text}]");
    assert_eq!(parse(&list).unwrap().len(), 2);
}

#[test]
fn json_objects_may_follow_each_other_as_programs_print_them() {
    let one = |callee: &str| {
        format!(
            r#"{{"kind":"Rule","key":{{"caller_service":"a","caller_cluster":"*","callee_service":"{callee}",
            "callee_method":"*"}},"policy":{{"mode":"off"}}}}"#
        )
    };
    for between in ["\n", " ", "", "\n\n\t"] {
        let text = format!("\n{}{between}{}\n", one("b"), one("c"));
        let documents = parse(&text).unwrap();
        let lines = between.bytes().filter(|byte| *byte == b'\n').count() as u64;
        let stand: Vec<_> = documents.iter().map(|document| (document.number, document.line)).collect();
        assert_eq!(stand, [(1, 2), (2, 3 + lines)], "{between:?}");
    }
    let wrong = format!("{}\n{}\n", one("b"), one("c").replace("off", "on"));
    let error = refused(&wrong);
    let found: Vec<_> = error.problems.iter().map(|p| (p.document, p.line, p.path.as_str())).collect();
    assert_eq!(found, [(Some(2), Some(4), "policy.mode")]);
    let broken = refused(&format!("{}\n{}", one("b"), r#"{"kind": "Rule","#));
    assert_eq!(broken.problems[0].document, Some(2));
    assert!(broken.problems[0].line >= Some(3), "{broken}");
    for no_json in ["{kind: Rule}\n{kind: Rule}", "{}\n---\n{}", "{}\u{c}", "{\"a\": 1}, {}", "{}\n[]"] {
        refused(no_json);
    }
}

#[test]
fn wrong_policies_are_refused_by_field_value_and_bound() {
    check_policy("{}", &[("policy.mode", "required (off, observe or enforce)")]);
    check_policy("{mode: on}", &[("policy.mode", r#"must be one of off, observe, enforce, not "on""#)]);
    check_policy(
        "{mode: unspecified}",
        &[("policy.mode", r#"must be one of off, observe, enforce, not "unspecified""#)],
    );
    check_policy("{mode: off, timeout: -2s}", &[("policy.timeout", "must be between 1ms and 1h, not -2s")]);
    check_policy("{mode: off, timeout: 2h}", &[("policy.timeout", "must be between 1ms and 1h, not 2h")]);
    check_policy(
        "{mode: off, timeout: 99999999999999999999h}",
        &[(
            "policy.timeout",
            r#""99999999999999999999h" is not a duration with its unit, such as 250ms, 2s or 1h"#,
        )],
    );
    check_policy(
        "{mode: off, retry: {max_attempts: 11}}",
        &[("policy.retry.max_attempts", "must be between 1 and 10, not 11")],
    );
    for (value, problem) in [
        (".nan", "must be between 0.001 and 1, not NaN"),
        (".inf", "must be between 0.001 and 1, not inf"),
        ("-1", "must be between 0.001 and 1, not -1"),
        ("1e300", "must be between 0.001 and 1, not 1e300"),
        ("0.00015", "must be in steps of 0.0001 (0.001 to 1), not 0.00015"),
        ("123456789012345678901234567890", "must be between 0.001 and 1, not 1.2345678901234568e29"),
    ] {
        check_policy(
            &format!("{{mode: off, retry_breaker: {{ratio: {value}}}}}"),
            &[("policy.retry_breaker.ratio", problem)],
        );
    }
    check_policy(
        "{mode: off, retry: {codes: {allow: [UNAVAILABLE, OK]}}}",
        &[("policy.retry.codes.allow[1]", "OK is not a failure")],
    );
}

#[test]
fn values_of_a_wrong_shape_are_refused_by_field() {
    for (policy, path, word) in [
        ("{mode: off, timeuot: 2s}", "policy.timeuot", "unknown field `timeuot`"),
        ("{mode: off, timeout: 250}", "policy.timeout", "250ms, 2s or 1h"),
        ("{mode: 1}", "policy.mode", "must be text"),
        ("{mode: true}", "policy.mode", "must be text"),
        ("{mode: off, retry: 3}", "policy.retry", "must be a map, not 3"),
        ("{mode: off, retry: {max_attempts: -1}}", "policy.retry.max_attempts", "-1"),
        ("{mode: off, retry: {max_attempts: 99999999999}}", "policy.retry.max_attempts", "99999999999"),
        ("{mode: off, retry: {max_attempts: many}}", "policy.retry.max_attempts", "many"),
        ("{mode: off, retry: {codes: [UNAVAILABLE]}}", "policy.retry.codes", "one of allow, deny"),
        ("{mode: off, retry: {codes: {allow: [NOPE]}}}", "policy.retry.codes.allow[0]", "\"NOPE\""),
        ("{mode: off, retry: {backoff: {linear: {}}}}", "policy.retry.backoff", "linear"),
        ("{mode: off, retry_breaker: {ratio: half}}", "policy.retry_breaker.ratio", "expected a number"),
        ("{mode: off, retry_breaker: {enabled: yes}}", "policy.retry_breaker.enabled", "true or false"),
        ("[off]", "policy", "must be a map, not a list"),
    ] {
        let error = refused(&format!("{KEY}policy: {policy}\n"));
        let [problem] = error.problems.as_slice() else { panic!("{policy}: {error}") };
        assert_eq!(problem.path, path, "{policy}: {error}");
        assert!(problem.problem.contains(word), "{policy}: {error}");
        assert_eq!((problem.document, problem.line), (Some(1), Some(3)), "{error}");
    }
}

#[test]
fn keys_are_refused_by_part() {
    for method in ["/Reserve", "*/Reserve", "/*", ""] {
        let text = EXAMPLE.replace("inventory.v1.Inventory/Reserve", &format!("{method:?}"));
        let error = refused(&text);
        let [problem] = error.problems.as_slice() else { panic!("{error}") };
        assert_eq!((problem.path.as_str(), problem.line), ("key.callee_method", Some(3)), "{error}");
    }
}

#[test]
fn all_problems_of_all_documents_come_out_at_once() {
    let text = format!(
        "{KEY}policy:\n  mode: offf\n  timeout: -1s\n  retry:\n    max_attempts: 0\n    spare: 1\n---\n{KEY}\
         policy:\n  retry_breaker:\n    buckets: 1\n---\nkind: Guards\n---\nkey: {{}}\n---\n- 3\n"
    );
    let error = refused(&text);
    let shown: Vec<_> = error.to_string().lines().map(str::to_owned).collect();
    assert_eq!(
        shown,
        [
            r#"document 1, line 4: policy.mode: must be one of off, observe, enforce, not "offf""#,
            "document 1, line 5: policy.timeout: must be between 1ms and 1h, not -1s",
            "document 1, line 7: policy.retry.max_attempts: must be between 1 and 10, not 0",
            "document 1, line 8: policy.retry.spare: unknown field `spare`, expected one of `max_attempts`, \
         `max_duration`, `per_attempt_timeout`, `codes`, `backoff`",
            "document 2, line 13: policy.mode: required (off, observe or enforce)",
            "document 2, line 14: policy.retry_breaker.buckets: must be between 2 and 60, not 1",
            r#"document 3, line 16: kind: must be Rule, Guard or Queue, not "Guards""#,
            "document 4, line 18: kind: required (Rule, Guard or Queue)",
            "document 5, line 20: must be a map that starts with its kind, such as kind: Rule",
        ]
    );
}

#[test]
fn absent_parts_are_named() {
    let error = refused("kind: Rule\n");
    let paths: Vec<_> = error.problems.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, ["key", "policy"]);
}

#[test]
fn text_without_a_document_is_refused() {
    for text in ["", "\n", "# only a comment\n", "---\n", "---\n---\n"] {
        assert!(refused(text).to_string().contains("no document"), "{text:?}");
    }
}

#[test]
fn syntax_errors_have_a_line() {
    for (text, line) in
        [(format!("{KEY}policy: {{mode: off\n"), 3), (format!("{KEY}policy:\n  mode: off\n mode: off\n"), 5)]
    {
        let error = refused(&text);
        let [problem] = error.problems.as_slice() else { panic!("{error}") };
        assert_eq!(problem.line, Some(line), "{error}");
        assert!(!problem.problem.contains('\n'), "{error}");
    }
}

#[test]
fn duplicate_field_is_rejected() {
    let error = refused(&format!("{KEY}policy: {{mode: off, mode: enforce}}\n"));
    let [problem] = error.problems.as_slice() else { panic!("{error}") };
    assert!(problem.problem.contains("duplicate") && problem.problem.contains("mode"), "{error}");
    assert_eq!(problem.line, Some(3), "{error}");
}

#[test]
fn bytes_that_are_not_utf8_are_refused_by_their_place() {
    let bytes = [KEY.as_bytes(), b"policy: {mode: \xff}\n"].concat();
    let error = parse_bytes(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "line 3: byte 16 of the line is not UTF-8");
    assert!(parse_bytes(EXAMPLE.as_bytes()).is_ok());
}

#[test]
fn anchors_work_but_do_not_unfold_without_bound() {
    let text = format!("{KEY}policy: &naive {{mode: off}}\n---\n{KEY}policy: {{mode: off}}\n");
    assert_eq!(parse(&text).unwrap().len(), 2);

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let last = format!("*a{}, ", i - 1).repeat(10);
        bomb.push_str(&format!("a{i}: &a{i} [{last}]\n"));
    }
    assert!(refused(&bomb).to_string().contains("alias"), "{}", refused(&bomb));
    assert!(parse(&"[".repeat(100_000)).is_err());
}

#[test]
fn duplicate_key_names_both_documents() {
    let text = format!("{KEY}policy: {{mode: off}}\n---\n{EXAMPLE}---\n{KEY}policy: {{mode: enforce}}\n");
    let error = check(&parse(&text).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "document 3, line 13: key: duplicate key a * c *, as in document 1, line 1"
    );
}

#[test]
fn an_error_in_one_document_does_not_hide_the_others() {
    let text = format!("{KEY}policy: {{mode: off, mode: off}}\n---\n{KEY}policy: {{mode: offf}}\n");
    let error = refused(&text);
    let places: Vec<_> = error.problems.iter().map(|p| (p.document, p.line)).collect();
    assert_eq!(places, [(Some(1), Some(3)), (Some(2), Some(7))], "{error}");
}

#[test]
fn documents_after_nothing_keep_their_lines() {
    let text = format!("\u{feff}---\n# nothing\n---\n{KEY}policy: {{mode: offf}}\n");
    let error = refused(&text);
    assert_eq!(error.problems[0].line, Some(6), "{error}");
    let text = format!("{KEY}policy: {{mode: offf}}\n").replace('\n', "\r\n");
    assert_eq!(refused(&text).problems[0].line, Some(3));
}

#[test]
fn wrong_values_in_a_list_do_not_hide_the_rest() {
    check_policy(
        "{mode: off, timeout: 0s, retry: {codes: {allow: [NOPE, ABORTED, OK, ~]}, backoff: {fixed: 3}, max_attempts: 0}}",
        &[
            ("policy.retry.backoff.fixed", "must be a map, not 3"),
            (
                "policy.retry.codes.allow[0]",
                "must be one of OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, \
             ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, \
             UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED, not \"NOPE\"",
            ),
            ("policy.retry.codes.allow[3]", "must be text, not null"),
            ("policy.retry.codes.allow[2]", "OK is not a failure"),
            ("policy.timeout", "must be between 1ms and 1h, not 0ms"),
            ("policy.retry.max_attempts", "must be between 1 and 10, not 0"),
        ],
    );
}

#[test]
fn unusual_names_survive() {
    for name in
        ["1e3", "0x10", "yes", "off", "null", "~", "-", "#", "a:", "&a", "!b", "%", "@", "123", "'", "\""]
    {
        let pattern = Pattern::parse(name, "*", name, "*").unwrap();
        let rule = Rule::new(pattern, damper_core::Policy::new(Mode::Off), 1).unwrap();
        let text = to_yaml(&[v1::Rule::from(&rule)]);
        assert_eq!(check(&parse(&text).unwrap()).unwrap().rules, [rule], "{text}");
    }
}

#[test]
fn server_fields_are_printed_and_read() {
    let mut rule = read_one(EXAMPLE);
    rule.revision = 9_007_199_254_740_993;
    rule.updated_at = Some(prost_types::Timestamp { seconds: 1_767_225_600, nanos: 0 });
    rule.updated_by = "ops".to_owned();
    let text = to_yaml(std::slice::from_ref(&rule));
    assert!(text.contains("revision: 9007199254740993\n"), "{text}");
    assert!(text.contains("2026-01-01T00:00:00Z"), "{text}");
    assert_eq!(read_one(&text), rule);
    assert_eq!(read_one(&to_json(std::slice::from_ref(&rule))), rule);
}

fn read_one(text: &str) -> v1::Rule {
    let Manifest::Rule(rule) = parse(text).unwrap().remove(0).manifest else { panic!("no rule: {text}") };
    rule
}

#[test]
fn defaults_are_not_printed() {
    let text = to_yaml(&[read_one(&format!("{KEY}policy: {{mode: off}}\n"))]);
    assert_eq!(
        text,
        "---\nkind: Rule\nkey:\n  caller_service: a\n  caller_cluster: \"*\"\n  callee_service: c\n  \
         callee_method: \"*\"\npolicy:\n  mode: \"off\"\n"
    );
}

#[test]
fn figures_are_printed_with_the_names_operators_know() {
    let stats = v1::RouteStats {
        mode: v1::Mode::Enforce.into(),
        calls_per_s: 2.5,
        fates: vec![v1::FateRate { fate: v1::Fate::RetryBreaker.into(), total: 3, ..Default::default() }],
        p99: Some(prost_types::Duration { seconds: 0, nanos: 1_500_000 }),
        ..Default::default()
    };
    assert_eq!(
        yaml(&stats),
        "mode: enforce\ncalls_per_s: 2.5\nfates:\n- fate: retry_breaker\n  total: 3\np99: 1500us\n"
    );
    let client = v1::Client { source: v1::Source::LastKnownGood.into(), ..Default::default() };
    assert_eq!(json(&client), "{\n  \"source\": \"last_known_good\"\n}");
    let count = v1::CodeCount { code: v1::Code::Ok.into(), count: 1 };
    assert_eq!(yaml(&count), "code: OK\ncount: 1\n");
    let newer = v1::RouteStats { mode: 77, ..Default::default() };
    assert_eq!(yaml(&newer), "mode: 77\n");
}

#[test]
fn a_list_of_a_hundred_thousand_rules_is_read() {
    let one = format!("{KEY}policy: {{mode: off}}\n---\n");
    assert_eq!(parse(&one.repeat(100_000)).unwrap().len(), 100_000);
}

proptest! {
    #[test]
    fn rules_come_back_as_they_were_written(policies in proptest::collection::vec(any_policy(), 1..4)) {
        let rules: Vec<v1::Rule> = policies.into_iter().enumerate().map(|(i, policy)| {
            let pattern = Pattern::parse("a", "*", &format!("c{i}"), "p.S/M").unwrap();
            (&Rule::new(pattern, policy, 5).unwrap()).into()
        }).collect();
        for text in [to_yaml(&rules), to_json(&rules)] {
            let documents = parse(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            let back: Vec<_> = documents.iter().map(|document| document.manifest.clone()).collect();
            let written: Vec<_> = rules.iter().cloned().map(Manifest::from).collect();
            prop_assert_eq!(&back, &written, "{}", text);
            let checked = check(&documents).unwrap().rules;
            let direct: Vec<_> = rules.iter().map(|rule| convert::rule(rule).unwrap()).collect();
            prop_assert_eq!(checked, direct);
        }
    }

    #[test]
    fn guards_come_back_as_they_were_written(guard in any_guard()) {
        let written = [v1::Guard::from(&guard)];
        for text in [to_yaml(&written), to_json(&written)] {
            let documents = parse(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(&documents[0].manifest, &Manifest::Guard(written[0].clone()), "{}", text);
            prop_assert_eq!(check(&documents).unwrap().guards, std::slice::from_ref(&guard));
        }
    }

    #[test]
    fn queues_come_back_as_they_were_written(queue in any_queue()) {
        let written = [v1::Queue::from(&queue)];
        for text in [to_yaml(&written), to_json(&written)] {
            let documents = parse(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(&documents[0].manifest, &Manifest::Queue(written[0].clone()), "{}", text);
            prop_assert_eq!(check(&documents).unwrap().queues, std::slice::from_ref(&queue));
        }
    }

    #[test]
    fn durations_come_back_as_they_were_written(ns in -3_200_000_000_000_000_000_i64..3_200_000_000_000_000_000) {
        let timeout = prost_types::Duration {
            seconds: ns / 1_000_000_000,
            nanos: i32::try_from(ns % 1_000_000_000).unwrap(),
        };
        let settings = v1::ReportSettings { interval: Some(timeout), ..Default::default() };
        let back: v1::ReportSettings = serde_json::from_str(&json(&settings)).unwrap();
        prop_assert_eq!(back, settings);
    }

    #[test]
    fn no_text_makes_reading_panic(text: String, shape in "[a-z:{}\\[\\], \n*&!'\"-]{0,60}") {
        let _ = (parse(&text), parse(&shape));
    }
}
