//! From Istio: routes of a `VirtualService`, and the budget of a `DestinationRule`.
//!
//! A route that does not mention retries is retried twice; that is a finding, and in the rule.

use std::collections::BTreeMap;
use std::time::Duration;

use damper_document::Value;
use damper_proto::v1;
use serde::Deserialize;

use super::retry_policy::{self, RetryPolicy};
use super::{Finding, Reader, finding, join, key, wire_budget};
use crate::backoff::wire;

/// Istio's retries where a route has none, and its conditions.
const UNSAID_RETRIES: u32 = 2;
const UNSAID_CONDITIONS: &str = "connect-failure,refused-stream,unavailable,cancelled";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    hosts: Vec<String>,
    http: Vec<Route>,
    host: String,
    traffic_policy: TrafficPolicy,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TrafficPolicy {
    retry_budget: Option<RetryBudget>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RetryBudget {
    percent: Option<f64>,
    min_retry_concurrency: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Route {
    r#match: Vec<Match>,
    timeout: Option<String>,
    retries: Option<Retries>,
    route: Vec<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Match {
    uri: Option<Uri>,
    source_labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Uri {
    exact: Option<String>,
    prefix: Option<String>,
    regex: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Retries {
    attempts: u32,
    per_try_timeout: Option<String>,
    retry_on: Option<String>,
    backoff: Option<String>,
}

/// Reads one object; other kinds are left alone.
pub(super) fn read(value: Value, path: &str, reader: &mut Reader<'_>) {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind != "VirtualService" && kind != "DestinationRule" {
        return;
    }
    let Some(object) = reader.shape::<Object>(value, path) else { return };
    let Object { spec, .. } = object;
    if kind == "DestinationRule" {
        return budget(&spec, path, reader);
    }
    for (i, route) in spec.http.iter().enumerate() {
        let path = join(path, &format!("spec.http[{i}]"));
        if route.route.is_empty() {
            continue;
        }
        let mut findings = Vec::new();
        let policy = policy(route, &path, reader, &mut findings);
        for host in &spec.hosts {
            if host.contains('*') {
                reader.fault(
                    &path,
                    format!(
                        "the host {host:?} has a wildcard, and a rule needs the exact name of its callee"
                    ),
                );
            } else if route.r#match.is_empty() {
                reader.add(&path, key(None, None, host, "*"), policy.clone(), findings.clone());
            } else {
                for (n, matched) in route.r#match.iter().enumerate() {
                    let path = join(&path, &format!("match[{n}]"));
                    let mut findings = findings.clone();
                    let key = pattern(matched, host, &path, reader.options, &mut findings);
                    reader.add(&path, key, policy.clone(), findings);
                }
            }
        }
    }
}

fn policy(route: &Route, path: &str, reader: &mut Reader<'_>, findings: &mut Vec<Finding>) -> v1::Policy {
    let timeout = reader.duration(&join(path, "timeout"), route.timeout.as_ref());
    let timeout = timeout.filter(|timeout| !timeout.is_zero()).map(wire);
    let path = join(path, "retries");
    let Some(retries) = &route.retries else {
        let message = format!("unsaid: Istio retries {UNSAID_RETRIES} times on {UNSAID_CONDITIONS}");
        findings.push(finding(&path, message));
        let unsaid = RetryPolicy {
            path: &path,
            field: "retryOn",
            retries: UNSAID_RETRIES,
            conditions: UNSAID_CONDITIONS,
            per_try_timeout: None,
            base: None,
            max: None,
        };
        let retry = retry_policy::read(&unsaid, reader, findings);
        return v1::Policy { timeout, retry, ..Default::default() };
    };
    if retries.attempts == 0 {
        return v1::Policy { timeout, ..Default::default() };
    }
    if retries.retry_on.is_none() {
        findings.push(finding(&path, format!("unsaid: Istio retries on {UNSAID_CONDITIONS}")));
    }
    let read = RetryPolicy {
        path: &path,
        field: "retryOn",
        retries: retries.attempts,
        conditions: retries.retry_on.as_deref().unwrap_or(UNSAID_CONDITIONS),
        per_try_timeout: some(
            reader.duration(&join(&path, "perTryTimeout"), retries.per_try_timeout.as_ref()),
        ),
        base: some(reader.duration(&join(&path, "backoff"), retries.backoff.as_ref())),
        max: None,
    };
    let retry = retry_policy::read(&read, reader, findings);
    v1::Policy { timeout, retry, ..Default::default() }
}

/// Returns a duration other than 0, which stands for none.
fn some(duration: Option<Duration>) -> Option<Duration> {
    duration.filter(|duration| !duration.is_zero())
}

fn pattern(
    matched: &Match,
    host: &str,
    path: &str,
    options: &super::Options,
    findings: &mut Vec<Finding>,
) -> v1::Pattern {
    let label = |key: &Option<String>| {
        key.as_ref().and_then(|key| matched.source_labels.get(key)).map(String::as_str)
    };
    let known = [&options.caller_label, &options.cluster_label];
    for key in matched.source_labels.keys().filter(|key| !known.contains(&&Some((*key).clone()))) {
        let message =
            format!("the label {key} is no part of the rule; add --caller-label or --cluster-label");
        findings.push(finding(&join(path, "sourceLabels"), message));
    }
    let method = matched.uri.as_ref().map_or(Some("*".to_owned()), method);
    if method.is_none() {
        findings.push(finding(&join(path, "uri"), "is no method of gRPC: the rule is for all methods"));
    }
    key(label(&options.caller_label), label(&options.cluster_label), host, method.as_deref().unwrap_or("*"))
}

/// Returns the method of a path; `None` if it has none.
fn method(uri: &Uri) -> Option<String> {
    match uri {
        Uri { exact: Some(path), prefix: None, regex: None } => {
            Some(path.strip_prefix('/')?.to_owned()).filter(|method| damper_core::key::is_method(method))
        }
        Uri { exact: None, prefix: Some(path), regex: None } => match path.strip_prefix('/')? {
            "" => Some("*".to_owned()),
            rest => rest
                .strip_suffix('/')
                .filter(|service| !service.contains('/'))
                .map(|service| format!("{service}/*")),
        },
        _ => None,
    }
}

/// Reads the budget of a host, for all rules of it.
fn budget(spec: &Spec, path: &str, reader: &mut Reader<'_>) {
    let Some(budget) = &spec.traffic_policy.retry_budget else { return };
    let path = join(path, "spec.trafficPolicy.retryBudget");
    let budget = wire_budget(budget.percent, budget.min_retry_concurrency);
    reader.limit(&path, &spec.host, Some(budget));
}
