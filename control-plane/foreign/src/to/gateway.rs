//! To the Gateway API: an `HTTPRoute` for each rule.
//!
//! `GRPCRoute` has neither retries nor time limits, and `HTTPRoute` retries HTTP statuses alone. A method of
//! gRPC therefore keeps its time limit only; a method of HTTP keeps attempts, statuses and the first wait.

use damper_core::{Code, MethodPart, Policy, http};
use damper_proto::v1;
use serde_json::{Value, json};

use super::routes::{self, Backend};
use super::{Options, Translation, Written, set, words};
use crate::backoff::{Curve, allow, wire};
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

const TARGET: &str = "the Gateway API";

/// Writes the routes of a callee.
pub(super) fn write(
    callee: &Callee<'_>,
    options: &Options,
    translation: &mut Translation,
) -> Result<(), String> {
    routes::write(callee, options, TARGET, translation, route)
}

fn route(selected: &Selected<'_>, policy: &Policy, backend: &Backend<'_>) -> Written<Value> {
    let (matched, is_http) = matched(selected)?;
    let mut expressed = Expressed::default();
    routes::check_limits(policy, TARGET)?;
    let mut rule = backend.rule();
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
            set(&mut timeouts, "backendRequest", retry.per_attempt_timeout.map(millis));
            let codes = Code::ALL.into_iter().filter(|code| {
                retry.codes.contains(*code)
                    && statuses.iter().any(|status| http::code_of(*status) == Some(*code))
            });
            expressed.policy.retry = Some(v1::Retry {
                max_attempts: Some(retry.max_attempts),
                per_attempt_timeout: retry.per_attempt_timeout.map(wire),
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
    Ok((backend.route("HTTPRoute", annotations, rule), expressed))
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
