//! What each target writes and reports, by the rows of the table of targets.

use serde_json::{Value, json};

use super::*;
use crate::example::rules;

const RETRIED: &str = "{ mode: enforce, retry: { max_attempts: 3, codes: { allow: [UNAVAILABLE] } } }";

/// Translates one rule for all methods of `b`.
fn one(target: Target, policy: &str) -> Translation {
    translate(target, &rules(&[("* * b *", policy)]), &with_port()).unwrap()
}

fn with_port() -> Options {
    Options { port: Some(80), ..Options::default() }
}

/// Returns the setting in the report of the first rule.
fn loss<'t>(translation: &'t Translation, setting: &str) -> &'t Loss {
    let settings = &translation.reports[0].settings;
    settings.iter().find(|loss| loss.setting == format!("policy.{setting}")).unwrap()
}

/// Returns the action of the first route of Envoy.
fn action(translation: &Translation) -> &Value {
    &translation.documents[0]["virtual_host"]["routes"][0]["route"]
}

#[test]
fn envoy_retries_failed_connections_of_unavailable() {
    let done = one(Target::Envoy, RETRIED);
    let conditions = &action(&done)["retry_policy"]["retry_on"];
    assert_eq!(conditions, "unavailable,connect-failure,refused-stream,reset");
    let istio = one(Target::Istio, RETRIED);
    assert_eq!(istio.documents[0]["spec"]["http"][0]["retries"]["retryOn"], *conditions);
}

#[test]
fn envoy_leaves_connections_alone_without_unavailable() {
    let done = one(Target::Envoy, "{ mode: enforce, retry: { codes: { allow: [INTERNAL, ABORTED] } } }");
    assert_eq!(action(&done)["retry_policy"]["retry_on"], "internal");
    let codes = loss(&done, "retry.codes");
    assert!(codes.why.contains("Envoy does not know ABORTED"), "{codes:?}");
    assert_eq!(codes.becomes, Some(json!({ "allow": ["INTERNAL"] })));
}

#[test]
fn envoy_reports_what_a_per_try_timeout_becomes() {
    let policy = |codes: &str| {
        format!("{{ mode: enforce, retry: {{ per_attempt_timeout: 50ms, codes: {{ allow: [{codes}] }} }} }}")
    };
    for target in [Target::Envoy, Target::Istio] {
        let reset = one(target, &policy("UNAVAILABLE"));
        let limit = loss(&reset, "retry.per_attempt_timeout");
        assert_eq!(limit.outcome, Outcome::Changed);
        assert!(limit.why.contains("a reset, which is retried whatever the codes"), "{limit:?}");
        let kept = one(target, &policy("DEADLINE_EXCEEDED"));
        let codes = loss(&kept, "retry.codes");
        assert!(codes.why.contains("retried only under reset, which needs UNAVAILABLE"), "{codes:?}");
        assert!(loss(&kept, "retry.per_attempt_timeout").why.contains("is not retried"));
    }
}

#[test]
fn envoy_ends_calls_with_another_code() {
    for target in [Target::Envoy, Target::Istio] {
        let done = one(target, "{ mode: enforce, timeout: 2s }");
        let timeout = loss(&done, "timeout");
        assert_eq!((timeout.outcome, &timeout.becomes), (Outcome::Changed, &Some("2s".into())));
        assert!(timeout.why.contains("fails as UNAVAILABLE, not DEADLINE_EXCEEDED"), "{timeout:?}");
    }
}

#[test]
fn envoy_writes_timeout_0_where_a_rule_has_none() {
    assert_eq!(action(&one(Target::Envoy, RETRIED))["timeout"], "0s");
    assert_eq!(action(&one(Target::Envoy, "{ mode: enforce, timeout: 2s }"))["timeout"], "2s");
}

#[test]
fn envoy_writes_a_threshold_where_a_rule_has_no_budget() {
    let threshold = |policy: &str| {
        let done = one(Target::Envoy, policy);
        done.documents[0]["cluster"]["circuit_breakers"]["thresholds"].clone()
    };
    assert_eq!(threshold(RETRIED), json!([{ "max_retries": u32::MAX }]));
    let budget = "{ mode: enforce, retry: {}, budget: { ratio: 0.25, min_per_second: 7 } }";
    let written = json!({ "budget_percent": { "value": 25.0 }, "min_retry_concurrency": 7 });
    assert_eq!(threshold(budget), json!([{ "retry_budget": written }]));
}

#[test]
fn envoy_routes_calls_without_a_rule() {
    let done = translate(Target::Envoy, &rules(&[("* * b p.S/M", RETRIED)]), &Options::default()).unwrap();
    let routes = &done.documents[0]["virtual_host"]["routes"];
    assert_eq!(
        routes[1],
        json!({ "match": { "prefix": "/" }, "route": { "cluster": "b", "timeout": "0s" } })
    );
    assert_eq!(done.notes, ["calls of b without a rule have no time limit and no retries"]);
    assert_eq!(one(Target::Envoy, RETRIED).notes, Vec::<String>::new());
}

#[test]
fn istio_writes_attempts_0_for_one_attempt() {
    let one_attempt = [
        "{ mode: enforce, timeout: 2s }",
        "{ mode: enforce, retry: { max_attempts: 1 } }",
        "{ mode: enforce, retry: { codes: { allow: [ABORTED] } } }",
        "{ mode: off }",
    ];
    for policy in one_attempt {
        let done = one(Target::Istio, policy);
        assert_eq!(done.documents[0]["spec"]["http"][0]["retries"], json!({ "attempts": 0 }), "{policy}");
    }
}

#[test]
fn istio_reports_that_other_calls_keep_its_two_retries() {
    let done = translate(Target::Istio, &rules(&[("* * b p.S/M", RETRIED)]), &Options::default()).unwrap();
    assert!(done.notes.contains(&"calls of b without a rule keep Istio's two retries".to_owned()));
    assert_eq!(done.documents[0]["spec"]["http"][1]["route"][0]["destination"]["host"], "b");
}

#[test]
fn kitex_refuses_a_rule_without_deadline_exceeded() {
    let done = one(Target::Kitex, RETRIED);
    assert!(done.documents.is_empty() && !done.reports[0].written);
    assert!(done.reports[0].refused[0].contains("DEADLINE_EXCEEDED is not allowed"), "{done:?}");
    assert_eq!(done.outcome(), Outcome::Lost);
    let policy = "{ mode: enforce, retry: { codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] } } }";
    let done = one(Target::Kitex, policy);
    assert_eq!(loss(&done, "retry.codes").becomes, Some(json!({ "allow": ["DEADLINE_EXCEEDED"] })));
}

#[test]
fn kitex_makes_a_timeout_the_end_of_retries() {
    let policy = "{ mode: enforce, timeout: 2s, retry: { codes: { allow: [DEADLINE_EXCEEDED] } } }";
    let done = one(Target::Kitex, policy);
    let stop = &done.documents[0]["*"]["failure_policy"]["stop_policy"];
    assert_eq!(stop["max_duration_ms"], 2000);
    let timeout = loss(&done, "timeout");
    assert_eq!((timeout.outcome, &timeout.becomes), (Outcome::Changed, &None));
    assert!(timeout.why.contains("ends no call: it stops further retries"), "{timeout:?}");
    assert_eq!(loss(&done, "retry.max_duration").becomes, Some("2s".into()));
    let off = one(Target::Kitex, "{ mode: enforce, timeout: 2s }");
    assert_eq!(loss(&off, "timeout").outcome, Outcome::Lost);
}

#[test]
fn kitex_keeps_one_attempt_before_a_wider_rule() {
    let retried = "{ mode: enforce, retry: { codes: { allow: [DEADLINE_EXCEEDED] } } }";
    for policy in ["{ mode: off }", "{ mode: observe, retry: {} }", "{ mode: enforce, timeout: 2s }"] {
        let rules = rules(&[("* * b p.S/M", policy), ("* * b *", retried)]);
        let done = translate(Target::Kitex, &rules, &Options::default()).unwrap();
        let method = &done.documents[0]["M"];
        assert_eq!((&method["enable"], &method["type"]), (&json!(true), &json!(0)), "{policy}");
        assert_eq!(method["failure_policy"]["stop_policy"]["max_retry_times"], 0, "{policy}");
    }
}

#[test]
fn kitex_reports_its_breaker_by_failed_calls() {
    let done = one(Target::Kitex, "{ mode: enforce, retry: { codes: { allow: [DEADLINE_EXCEEDED] } } }");
    let breaker = loss(&done, "retry_breaker");
    assert_eq!(breaker.outcome, Outcome::Lost);
    assert!(breaker.why.contains("share of the method's calls that failed"), "{breaker:?}");
}

/// Translates two rules of one callee with these breakers.
fn two_breakers(first: &str, second: &str) -> Translation {
    let policy = |breaker: &str| format!("{{ mode: enforce, retry: {{}}, retry_breaker: {breaker} }}");
    let (first, second) = (policy(first), policy(second));
    let rules = rules(&[("* * b p.S/M", &first), ("* * b p.S/N", &second)]);
    translate(Target::Grpc, &rules, &Options::default()).unwrap()
}

#[test]
fn grpc_conflicts_on_two_throttlings_of_one_target() {
    let done = two_breakers("{ earn: 0.1 }", "{ earn: 0.2 }");
    assert_eq!(done.documents[0].get("retryThrottling"), None);
    for report in &done.reports {
        let breaker = report.settings.iter().find(|loss| loss.setting == "policy.retry_breaker").unwrap();
        assert_eq!(breaker.outcome, Outcome::Lost);
        assert!(breaker.why.contains("rules of this callee have different breakers"), "{breaker:?}");
    }
    let with_none = two_breakers("{ earn: 0.1 }", "{ enabled: false }");
    assert_eq!(with_none.documents[0].get("retryThrottling"), None);
}

#[test]
fn grpc_writes_the_throttling_that_all_rules_have() {
    let done = two_breakers("{ earn: 0.1 }", "{ earn: 0.1 }");
    assert_eq!(done.documents[0]["retryThrottling"], json!({ "maxTokens": 10, "tokenRatio": 0.1 }));
    assert_eq!(loss(&done, "retry_breaker").outcome, Outcome::Changed);
}

#[test]
fn linkerd_reports_that_a_service_profile_switches_it_off() {
    let done = one(Target::Linkerd, RETRIED);
    assert_eq!(done.notes, ["a ServiceProfile of b would switch these annotations off"]);
    let annotations = &done.documents[0]["metadata"]["annotations"];
    assert_eq!(annotations["retry.linkerd.io/grpc"], "unavailable");
    assert_eq!(annotations["retry.linkerd.io/limit"], "2");
}

/// Translates one rule for this method of `b`.
fn of_method(target: Target, method: &str, policy: &str) -> Translation {
    translate(target, &rules(&[(&format!("* * b {method}"), policy)]), &with_port()).unwrap()
}

#[test]
fn gateway_writes_durations_of_five_digits() {
    let policy = "{ mode: enforce, timeout: 1h, retry: { per_attempt_timeout: 90.001s } }";
    let done = of_method(Target::Gateway, "GET:/a", policy);
    let timeouts = &done.documents[0]["spec"]["rules"][0]["timeouts"];
    assert_eq!(*timeouts, json!({ "request": "1h", "backendRequest": "1m30s1ms" }));
}

#[test]
fn gateway_notes_that_retries_are_experimental() {
    let note = "retry of b needs the experimental channel of HTTPRoute";
    assert_eq!(of_method(Target::Gateway, "GET:/a", RETRIED).notes, [note]);
    assert_eq!(of_method(Target::Gateway, "p.S/M", RETRIED).notes, Vec::<String>::new());
}

#[test]
fn gateway_leaves_out_a_limit_beyond_that_of_the_call() {
    let policy = "{ mode: enforce, timeout: 1s, retry: { per_attempt_timeout: 2s } }";
    let done = of_method(Target::Gateway, "GET:/a", policy);
    assert_eq!(done.documents[0]["spec"]["rules"][0]["timeouts"], json!({ "request": "1s" }));
    let limit = loss(&done, "retry.per_attempt_timeout");
    assert_eq!(limit.outcome, Outcome::Lost);
    assert!(limit.why.contains("may not exceed request"), "{limit:?}");
}

#[test]
fn gateway_refuses_what_no_route_can_match() {
    let methods =
        ["PURGE:/a", "GET:/a//b", "GET:/a/../b", "GET:/a/.", "GET:/a%2Fb", "GET:/a%zz", "GET:/a?b", "p.S/M#"];
    for method in methods {
        let done = of_method(Target::Gateway, method, RETRIED);
        assert!(done.documents.is_empty(), "{method}: {done:?}");
        assert!(done.reports[0].refused[0].starts_with("key.callee_method: the Gateway API"), "{done:?}");
    }
    for method in ["PATCH:/a/b.c/~d", "GET:/a%20b", "GET:/", "GET:/*", "p.S/M"] {
        assert_eq!(of_method(Target::Gateway, method, RETRIED).documents.len(), 1, "{method}");
    }
}

#[test]
fn linkerd_refuses_names_that_no_route_can_match() {
    for method in ["p.S/M-N", "1p.S/M", "p..S/M", "p.S./*"] {
        let done = of_method(Target::Linkerd, method, RETRIED);
        assert!(done.documents.is_empty(), "{method}: {done:?}");
        assert!(done.reports[0].refused[0].contains("GRPCRoute does not accept the name"), "{done:?}");
    }
    for method in ["p.v1.S_2/_M3", "S/*"] {
        assert_eq!(of_method(Target::Linkerd, method, RETRIED).documents.len(), 1, "{method}");
    }
}

#[test]
fn istio_needs_the_label_of_a_caller() {
    let rules = rules(&[("checkout eu b *", RETRIED), ("* * b *", RETRIED)]);
    let done = translate(Target::Istio, &rules, &Options::default()).unwrap();
    assert_eq!(
        done.reports[0].refused,
        [
            "key.caller_service: checkout needs the label of pods that has it; add --caller-label",
            "key.caller_cluster: eu needs the label of pods that has it; add --cluster-label",
        ]
    );
    let labels = |caller: Option<&str>| Options {
        caller: caller.map(str::to_owned),
        cluster: caller.map(|_| "eu".to_owned()),
        caller_label: Some("app".to_owned()),
        cluster_label: Some("zone".to_owned()),
        ..Options::default()
    };
    // A document of Istio applies to all callers also if the rules of one are chosen.
    for options in [labels(None), labels(Some("checkout"))] {
        let done = translate(Target::Istio, &rules, &options).unwrap();
        let routes = &done.documents[0]["spec"]["http"];
        let labels = json!({ "app": "checkout", "zone": "eu" });
        assert_eq!(routes[0]["match"], json!([{ "sourceLabels": labels }]));
        assert_eq!(routes[1].get("match"), None);
    }
}

#[test]
fn documents_for_all_callers_refuse_rules_of_one() {
    let rules = rules(&[("checkout * b *", RETRIED)]);
    let of_one = Options { caller: Some("checkout".to_owned()), ..with_port() };
    for target in [Target::Linkerd, Target::Gateway] {
        let refused = translate(target, &rules, &of_one).unwrap_err();
        assert_eq!(refused, ["rules of b differ by caller (checkout * b *)"]);
    }
    for target in [Target::Grpc, Target::Envoy, Target::Kitex] {
        assert!(translate(target, &rules, &of_one).is_ok(), "{target:?}");
        let refused = translate(target, &rules, &Options::default()).unwrap_err();
        assert_eq!(refused, ["rules of b differ by caller (checkout * b *); add --caller"]);
    }
}

#[test]
fn chain_flag_is_a_filter_of_envoy_and_istio_alone() {
    let rules = rules(&[("* * b *", RETRIED)]);
    let options = Options { chain_flag: true, ..with_port() };
    let envoy = translate(Target::Envoy, &rules, &options).unwrap();
    let source = |document: &Value, field: &str| -> String {
        let code = &document[field]["typed_config"]["default_source_code"]["inline_string"];
        code.as_str().unwrap().to_owned()
    };
    assert!(source(&envoy.documents[1], "inbound_http_filter").starts_with("local INBOUND = true\n"));
    assert!(source(&envoy.documents[2], "outbound_http_filter").starts_with("local INBOUND = false\n"));
    let istio = translate(Target::Istio, &rules, &options).unwrap();
    assert_eq!(istio.documents[1]["kind"], "EnvoyFilter");
    for target in [Target::Grpc, Target::Linkerd, Target::Kitex, Target::Gateway] {
        let refused = translate(target, &rules, &options).unwrap_err();
        assert_eq!(refused, ["--chain-flag: only Envoy and Istio have filters"], "{target:?}");
    }
}

#[test]
fn nothing_is_written_for_an_observed_rule() {
    let targets =
        [Target::Grpc, Target::Istio, Target::Envoy, Target::Linkerd, Target::Kitex, Target::Gateway];
    for target in targets {
        let done = one(target, "{ mode: observe, timeout: 2s, retry: {} }");
        assert!(done.documents.is_empty() && !done.reports[0].written, "{target:?}: {done:?}");
        assert_eq!(done.outcome(), Outcome::Lost);
    }
}
