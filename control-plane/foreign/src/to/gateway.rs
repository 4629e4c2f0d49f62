//! To the Gateway API: an `HTTPRoute` for each rule.
//!
//! `GRPCRoute` has neither retries nor time limits, and `HTTPRoute` retries HTTP statuses alone, in the
//! experimental channel. A method of gRPC therefore keeps its time limit only; a method of HTTP keeps
//! attempts, statuses and the first wait. A key that the schema would refuse is refused here.

use std::time::Duration;

use damper_core::{Code, MethodPart, Policy, Retry, http};
use damper_proto::v1;
use serde_json::{Value, json};

use super::routes::{self, Backend};
use super::{Options, Translation, Written, set, words};
use crate::backoff::{Curve, allow, wire};
use crate::duration::{units, up_to_millis};
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

const TARGET: &str = "the Gateway API";
/// Methods of HTTP that a route can match.
const VERBS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Writes the routes of a callee.
pub(super) fn write(
    callee: &Callee<'_>,
    options: &Options,
    translation: &mut Translation,
) -> Result<(), String> {
    let before = translation.documents.len();
    routes::write(callee, options, TARGET, translation, route)?;
    let retries = |document: &Value| document.pointer("/spec/rules/0/retry").is_some();
    if translation.documents.iter().skip(before).any(retries) {
        translation
            .notes
            .push(format!("retry of {} needs the experimental channel of HTTPRoute", callee.name));
    }
    Ok(())
}

fn route(selected: &Selected<'_>, policy: &Policy, backend: &Backend<'_>) -> Written<Value> {
    let (matched, is_http) = matched(selected)?;
    let mut expressed = Expressed::default();
    routes::check_limits(policy, TARGET)?;
    let mut rule = backend.rule();
    set(&mut rule, "matches", matched.map(|matched| json!([matched])));
    let mut timeouts = json!({});
    set(&mut timeouts, "request", policy.timeout.map(units));
    expressed.policy.timeout = policy.timeout.map(wire);
    if let Some(retry) = policy.retry.as_ref().filter(|_| is_http) {
        let statuses: Vec<u16> = (400..600)
            .filter(|status| http::code_of(*status).is_some_and(|code| retry.codes.contains(code)))
            .collect();
        let statuses: Vec<u16> = statuses.into_iter().filter(|status| *status <= 504).collect();
        let base = up_to_millis(Curve::of(&retry.backoff).base);
        if !statuses.is_empty() {
            let attempts = retry.max_attempts.saturating_sub(1);
            let written = json!({ "attempts": attempts, "codes": statuses, "backoff": units(base) });
            set(&mut rule, "retry", Some(written));
            let per_attempt = per_attempt(policy, retry, &mut expressed);
            set(&mut timeouts, "backendRequest", per_attempt.map(units));
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
    Ok((backend.route("HTTPRoute", annotations, rule), expressed))
}

/// Returns the limit of an attempt; `None` if it exceeds that of the call, which the schema refuses.
fn per_attempt(policy: &Policy, retry: &Retry, expressed: &mut Expressed) -> Option<Duration> {
    expressed
        .why("retry.per_attempt_timeout", "backendRequest may not exceed request, which ends the call first");
    retry.per_attempt_timeout.filter(|limit| policy.timeout.is_none_or(|whole| *limit <= whole))
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
    let path = |kind: &str, value: String| {
        if is_path(&value) {
            Ok(json!({ "path": { "type": kind, "value": value } }))
        } else {
            Err(vec![format!("key.callee_method: the Gateway API does not accept the path {value}")])
        }
    };
    let (MethodPart::Exact(method) | MethodPart::Service(method)) = &selected.pattern.callee_method else {
        return Ok((None, false));
    };
    let Some((verb, rest)) = method.split_once(':') else {
        let found = selected.grpc_method().map_err(|problem| vec![problem])?;
        let matched = found.map(|(service, method)| match method {
            None => path("PathPrefix", format!("/{service}")),
            Some(method) => path("Exact", format!("/{service}/{method}")),
        });
        return Ok((matched.transpose()?, false));
    };
    if !VERBS.contains(&verb) {
        return Err(vec![format!("key.callee_method: the Gateway API does not know the HTTP method {verb}")]);
    }
    let mut matched = match (&selected.pattern.callee_method, rest) {
        (MethodPart::Service(_), "") => path("PathPrefix", "/".to_owned())?,
        (MethodPart::Exact(_), rest) if rest.starts_with('/') && !rest.contains(['{', '*']) => {
            path("Exact", rest.to_owned())?
        }
        _ => return Err(vec![format!("key.callee_method: {method} has a variable part")]),
    };
    set(&mut matched, "method", Some(verb));
    Ok((Some(matched), true))
}

/// True for a path that the schema accepts: its characters, and no part that a server would resolve.
fn is_path(path: &str) -> bool {
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let fits = match byte {
            b'%' => {
                let escaped =
                    [rest.next(), rest.next()].map(|digit| digit.map(|digit| digit.to_ascii_lowercase()));
                let hex = |digit: &Option<u8>| digit.is_some_and(|digit| digit.is_ascii_hexdigit());
                escaped.iter().all(hex) && escaped != [Some(b'2'), Some(b'f')]
            }
            byte => byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@".contains(&byte),
        };
        if !fits {
            return false;
        }
    }
    let resolved = |part: &str| part == "." || part == "..";
    path.starts_with('/') && !path.contains("//") && !path.split('/').any(resolved)
}
