//! What is written is accepted by its consumer.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use damper_foreign::to::{Language, Options, Target};
use damper_tests::foreign::consumers::refused_by_grpc_java;
use damper_tests::lab::go;
use serde_json::{Value, json};
use tokio::process::Command;

use super::envoy::{check, config};
use super::{rules, written};

const ALL_CODES: &str = "[CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, \
    PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, \
    UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED]";

/// Policies with each setting that a target writes, and the ends of its range.
pub(crate) fn policies() -> Vec<String> {
    let backoffs = [
        "{ none: {} }",
        "{ fixed: { delay: 0.0005s } }",
        "{ random: { min: 0s, max: 24h } }",
        "{ exponential: { base: 25ms, multiplier: 1.5, max: 60s, jitter: full } }",
        "{ incrementing: { initial: 1ms, step: 7ms, max: 1s } }",
        "{ fibonacci: { unit: 1500us, max: 24h } }",
        "{ custom: { delays: [1s, 2ms, 3s] } }",
    ];
    let of_backoff = |backoff: &&str| format!("{{ mode: enforce, retry: {{ backoff: {backoff} }} }}");
    let mut policies: Vec<String> = backoffs.iter().map(of_backoff).collect();
    let others = [
        "{ mode: off }",
        "{ mode: enforce, timeout: 1h }",
        "{ mode: enforce, timeout: 0.001001s, retry: { per_attempt_timeout: 0.001s } }",
        "{ mode: enforce, retry: { max_attempts: 1 } }",
        "{ mode: enforce, retry: { max_attempts: 2, codes: { allow: [ABORTED] } } }",
        "{ mode: enforce, hedge: { delay: { fixed: 5ms }, max_hedges: 4 } }",
        "{ mode: enforce, retry: {}, hedge: { delay: { fixed: 5ms } } }",
        "{ mode: enforce, retry: {}, retry_breaker: { mode: credit, earn: 0.001 } }",
        "{ mode: enforce, retry: {}, retry_breaker: { mode: ratio, ratio: 1 } }",
        "{ mode: enforce, retry: {}, retry_breaker: { enabled: false } }",
        "{ mode: enforce, retry: {}, budget: { ratio: 0.01, min_per_second: 0 } }",
        "{ mode: enforce, retry: {}, budget: { ratio: 1, min_per_second: 1000 } }",
        "{ mode: enforce, retry: {}, budget: { ratio: 0.3333 } }",
    ];
    policies.extend(others.map(str::to_owned));
    policies
        .push(format!("{{ mode: enforce, retry: {{ max_attempts: 10, codes: {{ allow: {ALL_CODES} }} }} }}"));
    policies
}

/// Keys and policies: a callee for each policy, and one with rules for methods, a service, all and a caller.
pub(crate) fn keys() -> Vec<(String, String)> {
    let of_callee = |(number, policy)| (format!("* * callee-{number} *"), policy);
    let mut keys: Vec<(String, String)> = policies().into_iter().enumerate().map(of_callee).collect();
    let retried = "{ mode: enforce, timeout: 2s, retry: {} }".to_owned();
    for key in ["* * b p.S/M", "checkout * b p.S/N", "* * b p.S/*", "* * b *", "* * c p.v1.S/M"] {
        keys.push((key.to_owned(), retried.clone()));
    }
    keys
}

fn documents(target: Target, options: &Options) -> Vec<Value> {
    let keys = keys();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, policy)| (key.as_str(), policy.as_str())).collect();
    let options = Options { caller: Some("checkout".to_owned()), ..options.clone() };
    written(target, &rules(&keys), &options).documents
}

fn nowhere(_: &str) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9))
}

#[test]
fn envoy_accepts_what_is_written_for_it() {
    let documents = documents(Target::Envoy, &Options { chain_flag: true, ..Options::default() });
    assert_eq!(documents.len(), policies().len() + 2 + 2);
    check(&config(&documents, nowhere)).unwrap();
}

#[test]
fn envoy_refuses_what_it_does_not_know() {
    let mut documents = documents(Target::Envoy, &Options { chain_flag: true, ..Options::default() });
    let action = json!({ "cluster": "b", "timeout": "soon" });
    let mut wrong_field = documents.clone();
    wrong_field[0]["virtual_host"]["routes"][0]["route"] = action;
    let refused = check(&config(&wrong_field, nowhere)).unwrap_err();
    assert!(refused.contains("soon"), "{refused}");
    let filter = documents.len() - 1;
    documents[filter]["outbound_http_filter"]["typed_config"]["default_source_code"] =
        json!({ "inline_string": "function envoy_on_request(" });
    let refused = check(&config(&documents, nowhere)).unwrap_err();
    assert!(refused.contains("script load error"), "{refused}");
}

/// Returns files with the service configs of a client with hedging, and of one without.
fn service_configs(folder: &Path) -> Vec<PathBuf> {
    let mut configs = Vec::new();
    for language in [Language::Other, Language::Hedging] {
        configs.extend(documents(Target::Grpc, &Options { language, ..Options::default() }));
    }
    assert_eq!(configs.len(), 2 * (policies().len() + 2));
    configs.iter().enumerate().map(|(number, config)| file(folder, &number.to_string(), config)).collect()
}

fn file(folder: &Path, name: &str, config: &Value) -> PathBuf {
    let file = folder.join(format!("{name}.json"));
    std::fs::write(&file, config.to_string()).expect("a file");
    file
}

#[tokio::test]
async fn grpc_go_accepts_what_is_written_for_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut files = service_configs(folder.path());
    let wrong = json!({ "methodConfig": [{ "name": [{}], "timeout": "soon" }] });
    files.push(file(folder.path(), "wrong", &wrong));
    let program = go::service_config(Path::new(env!("CARGO_TARGET_TMPDIR"))).await.expect("a client in Go");
    let done = Command::new(program).args(&files).output().await.expect("the client runs");
    let refused = String::from_utf8(done.stderr).expect("a text");
    assert!(!done.status.success(), "{refused}");
    assert!(refused.lines().count() == 1 && refused.contains("/wrong.json: "), "all but the last: {refused}");
}

#[test]
fn grpc_java_accepts_what_is_written_for_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut files = service_configs(folder.path());
    let hedged = json!({ "maxAttempts": 1, "hedgingDelay": "1s" });
    let wrong = json!({ "methodConfig": [{ "name": [{}], "hedgingPolicy": hedged }] });
    files.push(file(folder.path(), "wrong", &wrong));
    let refused = refused_by_grpc_java(&files);
    assert!(refused.lines().count() == 1 && refused.contains("/wrong.json: "), "all but the last: {refused}");
}
