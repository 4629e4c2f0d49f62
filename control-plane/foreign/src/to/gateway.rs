//! To the Gateway API: an `HTTPRoute` for each rule.
//!
//! `GRPCRoute` has neither retries nor time limits, and `HTTPRoute` retries HTTP statuses alone. A method of
//! gRPC therefore keeps its time limit only; a method of HTTP keeps attempts, statuses and the first wait.

use damper_core::{Code, MethodPart, Policy, http};
use damper_proto::v1;
use serde_json::{Value, json};

use super::{Options, Translation, Written, each, host, set, words};
use crate::backoff::{Curve, allow, wire};
use crate::duration::{seconds, whole_millis};
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

/// Writes the routes of a callee.
pub(super) fn write(
    callee: &Callee<'_>,
    options: &Options,
    translation: &mut Translation,
) -> Result<(), String> {
    let host = host(&callee.name)?;
    let port = options.port.ok_or("a route needs the port of the callee's Service; add --port")?;
    let parts =
        each(callee, "the Gateway API", translation, |selected, policy| route(selected, policy, host, port));
    for (number, (_, mut route)) in parts.into_iter().enumerate() {
        if let Some(metadata) = route.get_mut("metadata") {
            set(metadata, "name", Some(format!("damper-{host}-{number}")));
            translation.documents.push(route);
        }
    }
    Ok(())
}

fn route(selected: &Selected<'_>, policy: &Policy, host: &str, port: u16) -> Written<Value> {
    let (matched, is_http) = matched(selected)?;
    let mut expressed = Expressed::default();
    let per_attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    for (setting, limit) in
        [("policy.timeout", policy.timeout), ("policy.retry.per_attempt_timeout", per_attempt)]
    {
        if let Some(limit) = limit.filter(|limit| whole_millis(*limit).is_none()) {
            return Err(vec![format!(
                "{setting}: the Gateway API takes whole milliseconds, not {}",
                seconds(limit)
            )]);
        }
    }
    let mut rule = json!({ "backendRefs": [{ "name": host, "port": port }] });
    set(&mut rule, "matches", matched.map(|matched| json!([matched])));
    let millis = |limit: std::time::Duration| format!("{}ms", limit.as_millis());
    let mut timeouts = json!({});
    set(&mut timeouts, "request", policy.timeout.map(millis));
    expressed.policy.timeout = policy.timeout.map(wire);
    if let Some(retry) = policy.retry.as_ref().filter(|_| is_http) {
        let statuses: Vec<u16> = (400..600)
            .filter(|status| http::code_of(*status).is_some_and(|code| retry.codes.contains(code)))
            .collect();
        let statuses: Vec<u16> = statuses.into_iter().filter(|status| *status <= 504).collect();
        let base = Curve::of(&retry.backoff).base;
        let base = crate::duration::up_to_millis(base);
        if !statuses.is_empty() {
            let attempts = retry.max_attempts.saturating_sub(1);
            let written = json!({ "attempts": attempts, "codes": statuses, "backoff": millis(base) });
            set(&mut rule, "retry", Some(written));
            set(&mut timeouts, "backendRequest", per_attempt.map(millis));
            let codes = Code::ALL.into_iter().filter(|code| {
                retry.codes.contains(*code)
                    && statuses.iter().any(|status| http::code_of(*status) == Some(*code))
            });
            expressed.policy.retry = Some(v1::Retry {
                max_attempts: Some(retry.max_attempts),
                per_attempt_timeout: per_attempt.map(wire),
                codes: Some(allow(codes)),
                backoff: Some(Curve::flat(base).wire(v1::Jitter::None, None)),
                ..Default::default()
            });
            expressed.note("retry.backoff", "backoff is the shortest wait; each gateway has its own curve");
            expressed.why("retry.codes", "HTTP statuses alone");
        }
    }
    reasons(is_http, &mut expressed);
    let has = timeouts.as_object().is_some_and(|map| !map.is_empty());
    set(&mut rule, "timeouts", Some(timeouts).filter(|_| has));
    let annotations = json!({ format!("{}/rules", crate::ANNOTATION): words(selected) });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "annotations": annotations },
        "spec": {
            "parentRefs": [{ "group": "", "kind": "Service", "name": host, "port": port }],
            "rules": [rule],
        },
    });
    Ok((route, expressed))
}

fn reasons(is_http: bool, expressed: &mut Expressed) {
    if !is_http {
        for setting in ["retry.max_attempts", "retry.codes", "retry.backoff", "retry.per_attempt_timeout"] {
            expressed.why(setting, "GRPCRoute has no retries, and HTTPRoute retries HTTP statuses alone");
        }
    }
    for setting in ["budget.ratio", "budget.min_per_second"] {
        expressed
            .why(setting, "the Gateway API has a budget in XBackendTrafficPolicy, which is an experiment");
    }
}

/// Returns the match of a route, and whether it is a method of HTTP.
fn matched(selected: &Selected<'_>) -> Result<(Option<Value>, bool), Vec<String>> {
    let path = |kind: &str, value: String| json!({ "path": { "type": kind, "value": value } });
    let (MethodPart::Exact(method) | MethodPart::Service(method)) = &selected.pattern.callee_method else {
        return Ok((None, false));
    };
    let Some((verb, rest)) = method.split_once(':') else {
        let found = selected.grpc_method().map_err(|problem| vec![problem])?;
        let matched = found.map(|(service, method)| match method {
            None => path("PathPrefix", format!("/{service}")),
            Some(method) => path("Exact", format!("/{service}/{method}")),
        });
        return Ok((matched, false));
    };
    let mut matched = match (&selected.pattern.callee_method, rest) {
        (MethodPart::Service(_), "") => path("PathPrefix", "/".to_owned()),
        (MethodPart::Exact(_), rest) if rest.starts_with('/') && !rest.contains(['{', '*']) => {
            path("Exact", rest.to_owned())
        }
        _ => return Err(vec![format!("key.callee_method: {method} has a variable part")]),
    };
    set(&mut matched, "method", Some(verb));
    Ok((Some(matched), true))
}
