//! To Istio: a `VirtualService` for each callee, and a `DestinationRule` for its budget.
//!
//! Istio retries twice where a route has none, so a route without retries writes `attempts: 0`. Calls that
//! no route matches would fail; the last route takes them, as Istio had it.

use damper_core::{MethodPart, Part, Policy};
use serde_json::{Value, json};

use super::retry_policy::{ClusterBudget, Max, express, retry_policy};
use super::{Options, Translation, Written, each, host, metadata, set, words};
use crate::backoff::wire;
use crate::duration::{seconds, whole_millis};
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

/// Writes the objects of a callee.
pub(super) fn write(
    callee: &Callee<'_>,
    options: &Options,
    translation: &mut Translation,
) -> Result<(), String> {
    let host = host(&callee.name)?;
    let budget = ClusterBudget::of(callee);
    let parts = each(callee, "Istio", translation, |selected, policy| {
        route(selected, policy, &callee.name, options, &budget)
    });
    if parts.is_empty() {
        return Ok(());
    }
    let annotated = metadata(&format!("damper-{host}"), &parts);
    let all = parts.iter().any(|(selected, _)| {
        let pattern = &selected.pattern;
        pattern.caller_service == Part::Any
            && pattern.caller_cluster == Part::Any
            && pattern.callee_method == MethodPart::Any
    });
    let mut routes: Vec<Value> = parts.into_iter().map(|(_, route)| route).collect();
    if !all {
        routes.push(json!({ "name": "damper no rule", "route": [{ "destination": { "host": host } }] }));
        translation.notes.push(format!("calls of {host} without a rule keep Istio's two retries"));
    }
    translation.documents.push(json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": annotated,
        "spec": { "hosts": [host], "http": routes },
    }));
    if let ClusterBudget::Same(budget) = &budget {
        let percent = ClusterBudget::percent(budget);
        let retry_budget = json!({ "percent": percent, "minRetryConcurrency": budget.min_per_second });
        translation.documents.push(json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "DestinationRule",
            "metadata": annotated,
            "spec": { "host": host, "trafficPolicy": { "retryBudget": retry_budget } },
        }));
        translation.notes.push(format!(
            "{host}: retryBudget needs a build of Istio that has it, and a host has one DestinationRule: merge it with \
             yours"
        ));
    }
    Ok(())
}

fn route(
    selected: &Selected<'_>,
    policy: &Policy,
    host: &str,
    options: &Options,
    budget: &ClusterBudget,
) -> Written<Value> {
    let mut refused = Vec::new();
    let matched = matched(selected, options, &mut refused);
    let per_attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    for (setting, limit) in
        [("policy.timeout", policy.timeout), ("policy.retry.per_attempt_timeout", per_attempt)]
    {
        if let Some(limit) = limit.filter(|limit| whole_millis(*limit).is_none()) {
            refused.push(format!("{setting}: Istio takes whole milliseconds, not {}", seconds(limit)));
        }
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let mut expressed = Expressed::default();
    let mut route = json!({ "name": words(selected), "route": [{ "destination": { "host": host } }] });
    set(&mut route, "match", matched.map(|matched| json!([matched])));
    set(&mut route, "timeout", policy.timeout.map(seconds));
    expressed.policy.timeout = policy.timeout.map(wire);
    let written = policy.retry.as_ref().and_then(|retry| retry_policy(retry, Max::TenTimes));
    let retries = written.as_ref().map_or_else(
        || json!({ "attempts": 0 }),
        |written| {
            let mut retries = json!({
                "attempts": written.retries,
                "retryOn": written.conditions,
                "backoff": seconds(written.base),
            });
            set(&mut retries, "perTryTimeout", written.per_try_timeout.map(seconds));
            retries
        },
    );
    set(&mut route, "retries", Some(retries));
    express(policy, written.as_ref(), options.chain_flag, &mut expressed);
    budget.express(policy, &mut expressed);
    Ok((route, expressed))
}

/// Returns the match of a route; `None` for all calls.
fn matched(selected: &Selected<'_>, options: &Options, refused: &mut Vec<String>) -> Option<Value> {
    let mut matched = json!({});
    match selected.grpc_method() {
        Ok(None) => {}
        Ok(Some((service, method))) => {
            let uri = method.map_or_else(
                || json!({ "prefix": format!("/{service}/") }),
                |method| json!({ "exact": format!("/{service}/{method}") }),
            );
            set(&mut matched, "uri", Some(uri));
        }
        Err(problem) => refused.push(problem),
    }
    let mut labels = json!({});
    let pattern = &selected.pattern;
    let callers = [
        ("key.caller_service", "--caller-label", &pattern.caller_service, &options.caller_label),
        ("key.caller_cluster", "--cluster-label", &pattern.caller_cluster, &options.cluster_label),
    ];
    for (setting, option, part, label) in callers {
        match (part, label) {
            (Part::Any, _) => {}
            (Part::Exact(name), Some(label)) => set(&mut labels, label, Some(name.as_str())),
            (Part::Exact(name), None) => {
                refused.push(format!("{setting}: {name} needs the label of pods that has it; add {option}"));
            }
        }
    }
    let has = |value: &Value| value.as_object().is_some_and(|map| !map.is_empty());
    set(&mut matched, "sourceLabels", Some(labels).filter(has));
    Some(matched).filter(has)
}
