//! To Linkerd: a `GRPCRoute` for each rule, with Linkerd's annotations.
//!
//! Linkerd retries with its own waits of 25 to 250 ms, and knows the five codes that Envoy knows. A
//! `ServiceProfile` of the same Service switches these annotations off.

use damper_core::{Policy, Ratio};
use damper_proto::v1;
use serde_json::{Value, json};
use std::time::Duration;

use super::routes::{self, Backend};
use super::{Options, Translation, Written, host, set, words};
use crate::backoff::{Curve, allow, wire};
use crate::codes;
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

const TARGET: &str = "Linkerd";

/// Writes the routes of a callee.
pub(super) fn write(
    callee: &Callee<'_>,
    options: &Options,
    translation: &mut Translation,
) -> Result<(), String> {
    routes::write(callee, options, TARGET, translation, route)?;
    translation
        .notes
        .push(format!("a ServiceProfile of {} would switch these annotations off", host(&callee.name)?));
    Ok(())
}

fn route(selected: &Selected<'_>, policy: &Policy, backend: &Backend<'_>) -> Written<Value> {
    let method = selected.grpc_method().map_err(|problem| vec![problem])?;
    if let Some((service, name)) = method.filter(|(service, name)| !matches(service, *name)) {
        let name = name.unwrap_or("*");
        return Err(vec![format!("key.callee_method: GRPCRoute does not accept the name {service}/{name}")]);
    }
    let mut expressed = Expressed::default();
    let mut annotations = json!({ format!("{}/rules", crate::ANNOTATION): words(selected) });
    let per_attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    routes::check_limits(policy, TARGET)?;
    let millis = |limit: Duration| format!("{}ms", limit.as_millis());
    set(&mut annotations, "timeout.linkerd.io/request", policy.timeout.map(millis));
    expressed.policy.timeout = policy.timeout.map(wire);
    if let Some(retry) = &policy.retry {
        let known = codes::known(retry.codes);
        if !known.is_empty() {
            set(&mut annotations, "retry.linkerd.io/grpc", Some(codes::grpc_conditions(known).join(",")));
            set(
                &mut annotations,
                "retry.linkerd.io/limit",
                Some(retry.max_attempts.saturating_sub(1).to_string()),
            );
            set(&mut annotations, "retry.linkerd.io/timeout", per_attempt.map(millis));
            expressed.policy.retry = Some(v1::Retry {
                max_attempts: Some(retry.max_attempts),
                per_attempt_timeout: per_attempt.map(wire),
                codes: Some(allow(known.iter())),
                backoff: Some(own_waits().wire(v1::Jitter::Full, None)),
                ..Default::default()
            });
            if per_attempt.is_some() {
                expressed.note("retry.per_attempt_timeout", "limits the time to the response's headers");
            }
        }
    }
    expressed.why("retry.codes", "Linkerd knows five codes: 1, 4, 8, 13 and 14");
    expressed.why("retry.backoff", "Linkerd waits 25 to 250 ms");
    let budget = "Linkerd has a budget only in a ServiceProfile, which switches these annotations off";
    expressed.why("budget.ratio", budget);
    expressed.why("budget.min_per_second", budget);
    expressed.why("chain.ignore_retry_flag", "Linkerd retries even while the service serves a retry");
    let method = method.map(|(service, method)| {
        let mut matched = json!({ "service": service });
        set(&mut matched, "method", method);
        json!([{ "method": matched }])
    });
    let mut rule = backend.rule();
    set(&mut rule, "matches", method);
    Ok((backend.route("GRPCRoute", annotations, rule), expressed))
}

/// True for names that `GRPCRoute` accepts: identifiers, in a service after an optional dot and between dots.
fn matches(service: &str, method: Option<&str>) -> bool {
    let identifier = |name: &str| {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(word) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    };
    let service = service.strip_prefix('.').unwrap_or(service);
    service.split('.').all(identifier) && method.is_none_or(identifier)
}

/// Returns Linkerd's own waits.
fn own_waits() -> Curve {
    Curve { base: Duration::from_millis(25), factor: Ratio::from_bp(20_000), max: Duration::from_millis(250) }
}
