//! Objects that `damper rules to` prints, at the schemas that Istio and the Gateway API publish.
//!
//! Linkerd reads `GRPCRoute`, so its schema is the Gateway API's. That has no types for annotations: a value
//! of Linkerd's is a string to it.

use std::process::Command;

use damper_foreign::to::{Options, Target};
use damper_tests::binary::damper;
use damper_tests::foreign::consumers::{Checked, Definitions};
use serde_json::{Value, json};

use super::accepted::{keys, policies};
use super::example::manifests;
use super::{rules, written};

/// Keys of callers and clusters, and names that YAML takes for other things than strings.
const NAMES: [&str; 5] =
    ["* eu b p.S/*", "checkout eu b *", "* * no *", "* * 1e3 p.S/on", "* * b.shop.svc.cluster.local p.S/M"];
/// Methods of HTTP, for the Gateway API.
const HTTP: [&str; 4] = ["GET:/*", "PUT:/a%20b/(c)", "PATCH:/a/b.c", "POST:/a/~b"];

/// Keys and policies with each name, and each policy for a method of HTTP.
fn all_keys() -> Vec<(String, String)> {
    let mut all = keys();
    let retried = "{ mode: enforce, retry: { per_attempt_timeout: 50ms } }";
    let limited = "{ mode: enforce, timeout: 1h, retry: { per_attempt_timeout: 61.001s } }";
    let crossed = "{ mode: enforce, timeout: 1s, retry: { per_attempt_timeout: 1h } }";
    all.extend(NAMES.map(|key| (key.to_owned(), retried.to_owned())));
    for (number, policy) in policies().into_iter().chain([limited, crossed].map(str::to_owned)).enumerate() {
        all.push((format!("* * http-{number} GET:/a"), policy));
    }
    all.extend(HTTP.map(|method| (format!("* * http {method}"), retried.to_owned())));
    all
}

/// Runs `damper rules to` on the keys that fit; returns what it prints, and the rules that it does not write.
fn printed(arguments: &[&str], fits: impl Fn(&str) -> bool) -> (String, Vec<String>) {
    let keys = all_keys();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, policy)| (key.as_str(), policy.as_str())).collect();
    let keys: Vec<_> = keys.into_iter().filter(|(key, _)| fits(key)).collect();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(file.path(), manifests(&keys)).expect("a file");
    let mut command = Command::new(damper());
    command.args(["rules", "to"]).args(arguments).arg("-f").arg(file.path()).args(["--accept", "lost"]);
    let done = command.output().expect("damper can be started");
    let report = String::from_utf8(done.stderr).expect("a text");
    assert!(done.status.success(), "{report}");
    let refused = report.lines().filter(|line| line.starts_with("  refused ")).map(str::to_owned).collect();
    (String::from_utf8(done.stdout).expect("a text"), refused)
}

fn is_http(key: &str) -> bool {
    key.contains(":/")
}

fn has_caller(key: &str) -> bool {
    !key.starts_with("* * ")
}

/// Returns the objects that are refused.
fn refused(checked: &[Checked]) -> Vec<&Checked> {
    checked.iter().filter(|object| !object.refused.is_empty()).collect()
}

/// Returns how many objects have the kind.
fn count(checked: &[Checked], kind: &str) -> usize {
    checked.iter().filter(|object| object.object.starts_with(&format!("{kind} "))).count()
}

const FINE: &str = "  refused policy.timeout: ";

#[test]
fn schemas_of_istio_accept_what_is_printed_for_it() {
    let labels = ["--caller-label", "app", "--cluster-label", "topology/zone", "--chain-flag"];
    let (text, unwritten) = printed(&[&["istio"], &labels[..]].concat(), |key| !is_http(key));
    assert!(unwritten.len() == 1 && unwritten[0].starts_with(FINE), "{unwritten:?}");
    let checked = Definitions::Istio.check(&text).unwrap();
    assert_eq!(refused(&checked), Vec::<&Checked>::new());
    assert_eq!(count(&checked, "VirtualService"), policies().len() - 1 + 2 + 3);
    assert_eq!((count(&checked, "DestinationRule"), count(&checked, "EnvoyFilter")), (3, 1));
}

#[test]
fn schemas_of_gateway_api_accept_what_is_printed_for_linkerd() {
    let (text, unwritten) = printed(&["linkerd", "--port", "80"], |key| !is_http(key) && !has_caller(key));
    assert!(unwritten.len() == 1 && unwritten[0].starts_with(FINE), "{unwritten:?}");
    let checked = Definitions::Standard.check(&text).unwrap();
    assert_eq!(refused(&checked), Vec::<&Checked>::new());
    assert_eq!(count(&checked, "GRPCRoute"), policies().len() - 1 + 4 + 3);
    assert!(text.contains("retry.linkerd.io/grpc") && text.contains("timeout.linkerd.io/request"), "{text}");
}

#[test]
fn schemas_of_gateway_api_accept_what_is_printed_for_it() {
    let (text, unwritten) = printed(&["gateway-api", "--port", "80"], |key| !has_caller(key));
    let fine = |line: &String| line.starts_with(FINE);
    assert!(unwritten.len() == 2 && unwritten.iter().all(fine), "{unwritten:?}");
    let checked = Definitions::Experimental.check(&text).unwrap();
    assert_eq!(refused(&checked), Vec::<&Checked>::new());
    assert_eq!(count(&checked, "HTTPRoute"), 2 * (policies().len() - 1) + 4 + 3 + 2 + HTTP.len());

    // The stable fields are the same without retries, as the translation notes.
    let checked = Definitions::Standard.check(&text).unwrap();
    let retry = r#"unknown field "spec.rules[0].retry""#;
    assert!(refused(&checked).iter().all(|object| object.refused == [retry]), "{checked:?}");
    let retries = text.lines().filter(|line| line.trim_start().starts_with("retry:")).count();
    assert_eq!((refused(&checked).len(), retries > 0), (retries, true));
}

/// A change to an object: path, field and value, and what the reason to refuse it contains.
type Wrong = (&'static str, &'static str, Value, &'static str);

/// Checks that each change makes the object refused.
fn refuse(definitions: Definitions, right: &Value, table: &[Wrong]) {
    let wrong = |(object, field, value, _): &Wrong| {
        let mut wrong = right.clone();
        wrong.pointer_mut(object).expect("an object")[field] = value.clone();
        format!("---\n{wrong}\n")
    };
    let checked = definitions.check(&table.iter().map(wrong).collect::<String>()).expect("objects");
    assert_eq!(checked.len(), table.len());
    for (Checked { refused, .. }, (_, field, _, reason)) in checked.iter().zip(table) {
        assert!(refused.iter().any(|found| found.contains(reason)), "{field}: {refused:?}");
    }
}

#[test]
fn schemas_refuse_what_they_do_not_know() {
    let policy = "{ mode: enforce, timeout: 2s, retry: { per_attempt_timeout: 50ms } }";
    let first = |target: Target, key: &str| {
        let options = Options { port: Some(80), ..Options::default() };
        written(target, &rules(&[(key, policy)]), &options).documents.remove(0)
    };
    let of_istio = [
        ("/spec/http/0/retries", "retryon", json!("reset"), "unknown field"),
        ("/spec/http/0/retries", "perTryTimeout", json!("0.0005s"), "greater than 1ms"),
        ("/metadata/annotations", "a", json!(1), "cannot unmarshal number"),
        ("", "kind", json!("VirtualServer"), "is not defined"),
    ];
    refuse(Definitions::Istio, &first(Target::Istio, "* * b *"), &of_istio);
    let of_gateway = [
        ("/spec/rules/0/retry", "attempts", json!("2"), "must be of type integer"),
        ("/spec/rules/0/timeouts", "request", json!("3600000ms"), "should match"),
        ("/spec/rules/0/timeouts", "backendRequest", json!("3s"), "cannot be longer than request timeout"),
        ("/metadata", "name", json!("A"), "lowercase RFC 1123 subdomain"),
    ];
    refuse(Definitions::Experimental, &first(Target::Gateway, "* * b GET:/a"), &of_gateway);
    let of_linkerd = [
        ("/spec/rules/0/matches/0/method", "method", json!("M-N"), "must only contain valid characters"),
        ("/spec/rules/0", "timeouts", json!({ "request": "1s" }), "unknown field"),
    ];
    refuse(Definitions::Standard, &first(Target::Linkerd, "* * b p.S/M"), &of_linkerd);
}
