//! From Envoy: the routes anywhere in a document, and the circuit breakers of its clusters.
//!
//! Routes are in route configurations, virtual hosts, listeners and bootstraps; all are found by their form.
//! Envoy's unsaid values are findings, and in the rule: 15 s for a call, one retry, three at a time.

use std::time::Duration;

use damper_document::Value;
use damper_proto::v1;
use serde::Deserialize;

use super::retry_policy::{self, RetryPolicy};
use super::{Finding, Reader, finding, join, key, wire_budget};
use crate::backoff::wire;

/// Envoy's limit of a call without `timeout`.
const UNSAID_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Route {
    r#match: Match,
    route: Option<Action>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Match {
    path: Option<String>,
    prefix: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Action {
    cluster: Option<String>,
    timeout: Option<String>,
    retry_policy: Option<Retries>,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default)]
struct Retries {
    retry_on: String,
    num_retries: Option<u32>,
    per_try_timeout: Option<String>,
    retry_back_off: Option<Waits>,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default)]
struct Waits {
    base_interval: Option<String>,
    max_interval: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cluster {
    name: String,
    circuit_breakers: Breakers,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Breakers {
    thresholds: Vec<Threshold>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Threshold {
    priority: Option<String>,
    max_retries: Option<u32>,
    retry_budget: Option<Budget>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Budget {
    budget_percent: Option<Percent>,
    min_retry_concurrency: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Percent {
    value: f64,
}

/// Reads the routes and clusters of a document, at any depth.
pub(super) fn read(value: Value, path: &str, reader: &mut Reader<'_>) {
    match value {
        Value::Object(mut fields) => {
            if fields.contains_key("circuit_breakers") && fields.contains_key("name") {
                return cluster(Value::Object(fields), path, reader);
            }
            if let Some(Value::Array(routes)) = fields.remove("routes") {
                let common = fields
                    .remove("retry_policy")
                    .and_then(|common| reader.shape::<Retries>(common, &join(path, "retry_policy")));
                for (i, value) in routes.into_iter().enumerate() {
                    let path = join(path, &format!("routes[{i}]"));
                    if let Some(read) = reader.shape::<Route>(value, &path) {
                        route(&read, common.as_ref(), &path, reader);
                    }
                }
            }
            for (field, value) in fields {
                read(value, &join(path, &field), reader);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.into_iter().enumerate() {
                read(item, &join(path, &format!("[{i}]")), reader);
            }
        }
        _ => {}
    }
}

fn cluster(value: Value, path: &str, reader: &mut Reader<'_>) {
    let Some(cluster) = reader.shape::<Cluster>(value, path) else { return };
    let default = |threshold: &&Threshold| threshold.priority.as_deref().is_none_or(|name| name == "DEFAULT");
    let Some(threshold) = cluster.circuit_breakers.thresholds.iter().find(default) else { return };
    let percent = |budget: &Budget| budget.budget_percent.as_ref().map(|percent| percent.value);
    let budget = threshold.retry_budget.as_ref();
    let budget = budget.map(|budget| wire_budget(percent(budget), budget.min_retry_concurrency));
    if budget.is_some() || threshold.max_retries.is_some() {
        reader.limit(&join(path, "circuit_breakers"), service(&cluster.name), budget);
    }
}

/// Returns the service of a cluster; Istio's names end with it, after its port.
fn service(cluster: &str) -> &str {
    cluster.rsplit('|').next().unwrap_or(cluster)
}

fn route(route: &Route, common: Option<&Retries>, path: &str, reader: &mut Reader<'_>) {
    let Some(action) = &route.route else { return };
    let at = join(path, "route");
    let Some(cluster) = &action.cluster else {
        return reader.fault(
            &at,
            "the Envoy route names no Envoy cluster; the rule needs the cluster's name as its callee",
        );
    };
    let mut findings = Vec::new();
    let timeout = match reader.duration(&join(&at, "timeout"), action.timeout.as_ref()) {
        None => {
            findings.push(finding(&join(&at, "timeout"), "unsaid: Envoy ends a call after 15s"));
            Some(UNSAID_TIMEOUT)
        }
        Some(timeout) => some(timeout),
    };
    let policy = join(&at, "retry_policy");
    let retries = action.retry_policy.as_ref().or(common).filter(|retries| retries.num_retries != Some(0));
    let retry = retries.and_then(|retries| retry(retries, &policy, reader, &mut findings));
    let policy = v1::Policy { timeout: timeout.map(wire), retry, ..Default::default() };
    let method = match (&route.r#match.path, &route.r#match.prefix) {
        (Some(path), None) => {
            path.strip_prefix('/').filter(|method| damper_core::key::is_method(method)).map(str::to_owned)
        }
        (None, Some(prefix)) if prefix == "/" => Some("*".to_owned()),
        (None, Some(prefix)) => {
            let service = prefix.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
            service.filter(|service| !service.contains('/')).map(|service| format!("{service}/*"))
        }
        _ => None,
    };
    if method.is_none() {
        findings.push(finding(&join(path, "match"), "is no method of gRPC: the rule is for all methods"));
    }
    let key = key(None, None, service(cluster), method.as_deref().unwrap_or("*"));
    reader.add(&at, key, policy, findings);
}

fn some(duration: Duration) -> Option<Duration> {
    Some(duration).filter(|duration| !duration.is_zero())
}

fn retry(
    retries: &Retries,
    path: &str,
    reader: &mut Reader<'_>,
    findings: &mut Vec<Finding>,
) -> Option<v1::Retry> {
    if retries.num_retries.is_none() {
        findings.push(finding(path, "unsaid: Envoy retries once"));
    }
    let waits = retries.retry_back_off.clone().unwrap_or_default();
    let at = join(path, "retry_back_off");
    let read = RetryPolicy {
        path,
        field: "retry_on",
        retries: retries.num_retries.unwrap_or(1),
        conditions: &retries.retry_on,
        per_try_timeout: reader
            .duration(&join(path, "per_try_timeout"), retries.per_try_timeout.as_ref())
            .and_then(some),
        base: reader.duration(&join(&at, "base_interval"), waits.base_interval.as_ref()),
        max: reader.duration(&join(&at, "max_interval"), waits.max_interval.as_ref()),
    };
    retry_policy::read(&read, reader, findings)
}
