//! To Envoy: the routes of a virtual host, and the circuit breakers of the callee's cluster.
//!
//! Without `timeout` Envoy ends a call after 15 s, so a rule without one writes 0. Without a threshold a
//! cluster retries three calls at a time, so the threshold is written. Calls that no route matches would
//! fail; the last route takes them.

use damper_core::{MethodPart, Policy};
use serde_json::{Value, json};

use super::retry_policy::{ClusterBudget, Max, express, retry_policy};
use super::{Options, Translation, Written, each, set, words};
use crate::backoff::wire;
use crate::duration::{seconds, up_to_millis};
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

/// Writes the fragments of a callee.
pub(super) fn write(callee: &Callee<'_>, options: &Options, translation: &mut Translation) {
    let budget = ClusterBudget::of(callee);
    let parts = each(callee, "Envoy", translation, |selected, policy| {
        route(selected, policy, &callee.name, options, &budget)
    });
    if parts.is_empty() {
        return;
    }
    let all = parts.iter().any(|(selected, _)| selected.pattern.callee_method == MethodPart::Any);
    let mut routes: Vec<Value> = parts.into_iter().map(|(_, route)| route).collect();
    if !all {
        let action = json!({ "cluster": callee.name, "timeout": "0s" });
        routes.push(json!({ "match": { "prefix": "/" }, "route": action }));
        let name = &callee.name;
        translation.notes.push(format!("calls of {name} without a rule have no time limit and no retries"));
    }
    let threshold = match &budget {
        ClusterBudget::Same(budget) => json!({
            "retry_budget": {
                "budget_percent": { "value": ClusterBudget::percent(budget) },
                "min_retry_concurrency": budget.min_per_second,
            },
        }),
        ClusterBudget::None | ClusterBudget::Conflict => json!({ "max_retries": u32::MAX }),
    };
    translation.documents.push(json!({
        "virtual_host": {
            "name": callee.name,
            "domains": [callee.name],
            "routes": routes,
            // Istio's Envoys send the count anyway. By it the callee knows of retries, and that Envoy obeys
            // `x-envoy-ratelimited`.
            "include_request_attempt_count": true,
        },
        "cluster": { "name": callee.name, "circuit_breakers": { "thresholds": [threshold] } },
    }));
}

fn route(
    selected: &Selected<'_>,
    policy: &Policy,
    cluster: &str,
    options: &Options,
    budget: &ClusterBudget,
) -> Written<Value> {
    let matched = match selected.grpc_method().map_err(|problem| vec![problem])? {
        None => json!({ "prefix": "/" }),
        Some((service, None)) => json!({ "prefix": format!("/{service}/") }),
        Some((service, Some(method))) => json!({ "path": format!("/{service}/{method}") }),
    };
    let mut expressed = Expressed::default();
    let timeout = policy.timeout.map(up_to_millis);
    expressed.policy.timeout = timeout.map(wire);
    let mut action = json!({ "cluster": cluster, "timeout": seconds(timeout.unwrap_or_default()) });
    let mut written = policy.retry.as_ref().and_then(|retry| retry_policy(retry, Max::Own));
    if let Some(written) = &mut written {
        written.per_try_timeout = written.per_try_timeout.map(up_to_millis);
        let mut retry = json!({
            "retry_on": written.conditions,
            "num_retries": written.retries,
            "retry_back_off": { "base_interval": seconds(written.base), "max_interval": seconds(written.max) },
        });
        set(&mut retry, "per_try_timeout", written.per_try_timeout.map(seconds));
        set(&mut action, "retry_policy", Some(retry));
    }
    express(policy, written.as_ref(), options.chain_flag, &mut expressed);
    budget.express(policy, &mut expressed);
    let provenance = json!({ "filter_metadata": { crate::ANNOTATION: { "rule": words(selected) } } });
    Ok((json!({ "match": matched, "route": action, "metadata": provenance }), expressed))
}
