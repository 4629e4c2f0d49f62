//! Defaults that a source leaves unsaid: each is in the rule, and a finding.

use super::*;

/// Reads a text with one rule.
fn one(source: Source, text: &str) -> Found {
    let options =
        Options { callee: Some("b".to_owned()), service: Some("p.S".to_owned()), ..Options::default() };
    let mut readings = [read(source, text, &options).unwrap()];
    share_limits(source, &mut readings);
    let [reading] = readings;
    let mut found: Vec<Found> = reading.documents.into_iter().flat_map(|document| document.content).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// True if there is this finding at this path.
fn has(found: &Found, path: &str, message: &str) -> bool {
    found.findings.iter().any(|finding| finding.path == path && finding.message.contains(message))
}

fn policy(found: &Found) -> damper_core::Policy {
    convert::policy(found.rule.policy.as_ref().unwrap()).unwrap()
}

fn codes(found: &Found) -> Vec<Code> {
    policy(found).retry.unwrap().codes.iter().collect()
}

fn istio(route: &str) -> String {
    format!("kind: VirtualService\nspec: {{ hosts: [b], http: [{route}] }}\n")
}

#[test]
fn two_unsaid_retries_of_istio_are_found() {
    let found = one(Source::Istio, &istio("{ route: [{}] }"));
    assert!(has(&found, "spec.http[0].retries", "unsaid: Istio retries 2 times"), "{found:?}");
    assert_eq!(policy(&found).retry.unwrap().max_attempts, 3);
    assert_eq!(codes(&found), [Code::Cancelled, Code::Unavailable]);
    assert_eq!(policy(&found).mode, damper_core::Mode::Observe);
    let none = one(Source::Istio, &istio("{ retries: { attempts: 0 }, route: [{}] }"));
    assert!(policy(&none).retry.is_none() && none.findings.is_empty(), "{none:?}");
}

#[test]
fn unsaid_conditions_and_waits_of_istio_are_found() {
    let found = one(Source::Istio, &istio("{ retries: { attempts: 4 }, route: [{}] }"));
    assert!(has(&found, "spec.http[0].retries", "unsaid: Istio retries on connect-failure"), "{found:?}");
    assert!(has(&found, "spec.http[0].retries", "unsaid: the first wait is 25ms"), "{found:?}");
    assert_eq!(policy(&found).retry.unwrap().max_attempts, 5);
}

#[test]
fn labels_of_istio_are_callers_if_they_are_named() {
    let route = "{ match: [{ sourceLabels: { app: checkout, tier: web } }], route: [{}] }";
    let labels = Options { caller_label: Some("app".to_owned()), ..Options::default() };
    let read = |options: &Options| {
        let reading = read(Source::Istio, &istio(route), options).unwrap();
        reading.documents[0].content[0].clone()
    };
    let named = read(&labels);
    assert_eq!(named.rule.key.as_ref().unwrap().caller_service, "checkout");
    assert!(has(&named, "spec.http[0].match[0].sourceLabels", "the label tier is no part of the rule"));
    assert!(!has(&named, "spec.http[0].match[0].sourceLabels", "the label app"), "{named:?}");
    let unnamed = read(&Options::default());
    assert_eq!(unnamed.rule.key.as_ref().unwrap().caller_service, "*");
    assert!(has(&unnamed, "spec.http[0].match[0].sourceLabels", "the label app is no part of the rule"));
}

#[test]
fn unsaid_values_of_envoy_are_found() {
    let route = "{ match: { prefix: / }, route: { cluster: b, retry_policy: { retry_on: unavailable } } }";
    let found = one(Source::Envoy, &format!("virtual_host: {{ routes: [{route}] }}\n"));
    let at = "virtual_host.routes[0].route";
    assert!(has(&found, &format!("{at}.timeout"), "unsaid: Envoy ends a call after 15s"), "{found:?}");
    assert!(has(&found, &format!("{at}.retry_policy"), "unsaid: Envoy retries once"), "{found:?}");
    assert!(has(&found, "", "unsaid: the cluster allows 3 retries at a time"), "{found:?}");
    let conditions = format!("{at}.retry_policy.retry_on");
    assert!(has(&found, &conditions, "failed connections are not all retried"), "{found:?}");
    let policy = policy(&found);
    assert_eq!(policy.timeout, Some(Duration::from_secs(15)));
    assert_eq!(policy.retry.unwrap().max_attempts, 2);
}

#[test]
fn timeout_0_of_envoy_is_none() {
    let route = "{ match: { prefix: / }, route: { cluster: b, timeout: 0s } }";
    let found = one(Source::Envoy, &format!("routes: [{route}]\n"));
    assert_eq!((policy(&found).timeout, found.findings), (None, vec![]));
}

#[test]
fn missing_throttling_of_grpc_is_found() {
    let retry = "retryPolicy: { maxAttempts: 9, initialBackoff: 0.1s, maxBackoff: 1s, \
        backoffMultiplier: 2, retryableStatusCodes: [UNAVAILABLE] }";
    let found = one(Source::Grpc, &format!("methodConfig: [{{ name: [{{}}], {retry} }}]\n"));
    assert!(has(&found, "methodConfig[0]", "nothing limits its retries"), "{found:?}");
    assert!(has(&found, "methodConfig[0].retryPolicy.maxAttempts", "counts 9 as 5"), "{found:?}");
    assert_eq!(policy(&found).retry.unwrap().max_attempts, 5);
}

#[test]
fn retries_of_kitex_are_of_time_outs_alone() {
    let stop = "max_retry_times: 2, disable_chain_stop: true";
    let failure = format!("failure_policy: {{ stop_policy: {{ {stop} }} }}");
    let found = one(Source::Kitex, &format!("M: {{ enable: true, type: 0, {failure} }}\n"));
    assert_eq!(codes(&found), [Code::DeadlineExceeded]);
    assert!(has(&found, "M.failure_policy", "Kitex retries time-outs only"), "{found:?}");
    let stop = "M.failure_policy.stop_policy";
    assert!(has(&found, &format!("{stop}.disable_chain_stop"), "retries multiply"), "{found:?}");
}

#[test]
fn kitex_retries_nothing_without_a_number() {
    for policy in ["type: 0, failure_policy: {}", "type: 1, backup_policy: { retry_delay_ms: 5 }"] {
        let found = one(Source::Kitex, &format!("M: {{ enable: true, {policy} }}\n"));
        let read = convert::policy(found.rule.policy.as_ref().unwrap()).unwrap();
        assert!(read.retry.is_none() && read.hedge.is_none(), "{found:?}");
    }
}

#[test]
fn disabled_policy_of_kitex_leaves_its_calls_to_all() {
    let failure = "enable: true, type: 0, failure_policy: { stop_policy: { max_retry_times: 3 } }";
    let found = one(Source::Kitex, &format!("M: {{ enable: false }}\n'*': {{ {failure} }}\n"));
    assert_eq!(found.rule.key.as_ref().unwrap().callee_method, "*");
    assert!(has(&found, "*", "M is disabled, so Kitex gives its calls this policy"), "{found:?}");
    let alone = one(Source::Kitex, "M: { enable: false }\n");
    assert_eq!((policy(&alone).retry, alone.findings.len()), (None, 0));
}

#[test]
fn faults_have_their_path_and_line() {
    let text = istio("{ timeout: soon, retries: { attempts: 1, retryOn: unavailabel }, route: [{}] }");
    let error = read(Source::Istio, &text, &Options::default()).unwrap_err();
    let paths: Vec<&str> = error.problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths, ["spec.http[0].timeout", "spec.http[0].retries.retryOn"]);
    assert!(error.problems.iter().all(|problem| problem.line.is_some()), "{error:?}");
}
