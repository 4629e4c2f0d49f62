//! To Kitex: the retry policies of a client by method.
//!
//! Kitex's failure retry retries time-outs alone. A rule with UNAVAILABLE would become a retry of exactly
//! what it does not name, so a rule is written only if its codes have DEADLINE_EXCEEDED. `max_duration_ms`
//! ends no call; it stops further retries. A method whose policy is disabled has that of `*`, so a rule
//! without retries is written as a policy of no retries.

use damper_core::{Backoff, Code, HedgeDelay, Jitter, MethodPart, Policy, Retry, Waits};
use damper_proto::v1;
use serde_json::{Value, json};
use std::time::Duration;

use super::{Translation, Written, each};
use crate::backoff::{Curve, allow, wire};
use crate::duration::{seconds, up_to_millis, whole_millis};
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

/// The most retries of a failed call, and the most hedges.
const MOST_RETRIES: u32 = 5;
const MOST_HEDGES: u32 = 2;
/// Kitex's breaker: retries stop at this share of failed calls of the method.
const ERROR_RATE: f64 = 0.1;

/// Writes the policies of a callee.
pub(super) fn write(callee: &Callee<'_>, translation: &mut Translation) {
    let mut names: Vec<String> = Vec::new();
    let parts = each(callee, "Kitex", translation, |selected, policy| {
        let name = name(selected)?;
        if names.contains(&name) {
            return Err(vec![format!(
                "key.callee_method: Kitex has one policy for {name}, and a rule before has it"
            )]);
        }
        let written = rule(policy)?;
        names.push(name.clone());
        Ok(((name, written.0), written.1))
    });
    if !parts.is_empty() {
        let policies = parts.into_iter().map(|(_, (name, policy))| (name, policy)).collect();
        translation.documents.push(Value::Object(policies));
    }
}

/// Returns the name of the method, without its service.
fn name(selected: &Selected<'_>) -> Result<String, Vec<String>> {
    match &selected.pattern.callee_method {
        MethodPart::Any => Ok("*".to_owned()),
        MethodPart::Exact(_) => match selected.grpc_method() {
            Ok(Some((_, Some(method)))) => Ok(method.to_owned()),
            Ok(_) => Ok("*".to_owned()),
            Err(problem) => Err(vec![problem]),
        },
        MethodPart::Service(service) => Err(vec![format!(
            "key.callee_method: Kitex has policies of a method or of all, not of {service}/*"
        )]),
    }
}

fn rule(policy: &Policy) -> Written<Value> {
    let mut expressed = Expressed::default();
    expressed.why(
        "retry_breaker",
        "Kitex has its own, by the share of the method's calls that failed, at most 0.3",
    );
    expressed.why("chain.ignore_retry_flag", "Kitex keeps its flag over its own protocols, not over gRPC");
    expressed.why("retry.per_attempt_timeout", "Kitex's limit of an attempt is the client's rpc timeout");
    let stop = |retries: u32, limit: Option<Duration>| {
        json!({
            "max_retry_times": retries,
            "max_duration_ms": limit.map_or(0, |limit| whole_millis(limit).unwrap_or_default()),
            "cb_policy": { "error_rate": ERROR_RATE },
        })
    };
    let limit = limit(policy, &mut expressed)?;
    if let Some(retry) = &policy.retry {
        if !retry.codes.contains(Code::DeadlineExceeded) {
            let problem =
                "policy.retry.codes: Kitex retries time-outs alone, and DEADLINE_EXCEEDED is not allowed";
            return Err(vec![problem.to_owned()]);
        }
        let retries = retry.max_attempts.saturating_sub(1).min(MOST_RETRIES);
        let (backoff, waits) = backoff(retry);
        expressed.policy.retry = Some(v1::Retry {
            max_attempts: Some(retries + 1),
            max_duration: limit.map(wire),
            codes: Some(allow([Code::DeadlineExceeded])),
            backoff: Some(waits),
            ..Default::default()
        });
        expressed.why("retry.max_attempts", "Kitex makes at most 5 retries");
        expressed.why("retry.codes", "Kitex retries time-outs alone");
        expressed.why("retry.backoff", "Kitex has no wait, the same wait, or a random one");
        expressed.why("retry.max_duration", "max_duration_ms, in place of policy.timeout");
        expressed.why("hedge.delay", "Kitex has failed calls retried, or slow ones hedged");
        expressed.why("hedge.max_hedges", "Kitex has failed calls retried, or slow ones hedged");
        let failure = json!({
            "stop_policy": stop(retries, limit),
            "backoff_policy": backoff,
            "retry_same_node": false,
        });
        return Ok((json!({ "enable": true, "type": 0, "failure_policy": failure }), expressed));
    }
    hedge(policy, limit, stop, expressed)
}

/// Writes a backup request, or a policy that retries nothing.
fn hedge(
    policy: &Policy,
    limit: Option<Duration>,
    stop: impl Fn(u32, Option<Duration>) -> Value,
    mut expressed: Expressed,
) -> Written<Value> {
    let one_attempt = || {
        let failure = json!({ "stop_policy": stop(0, None), "retry_same_node": false });
        json!({ "enable": true, "type": 0, "failure_policy": failure })
    };
    let Some(hedge) = &policy.hedge else { return Ok((one_attempt(), expressed)) };
    let HedgeDelay::Fixed(delay) = hedge.delay else {
        expressed.why("hedge.delay", "Kitex hedges after a fixed delay");
        expressed.why("hedge.max_hedges", "Kitex hedges after a fixed delay");
        return Ok((one_attempt(), expressed));
    };
    let Some(millis) = whole_millis(delay) else {
        return Err(vec![format!(
            "policy.hedge.delay: Kitex takes whole milliseconds, not {}",
            seconds(delay)
        )]);
    };
    let hedges = hedge.max_hedges.min(MOST_HEDGES);
    let fixed = v1::HedgeDelay { kind: Some(v1::hedge_delay::Kind::Fixed(wire(delay))) };
    expressed.policy.hedge = Some(v1::Hedge { delay: Some(fixed), max_hedges: Some(hedges) });
    expressed.note("hedge.delay", "the first attempt that finishes wins, even if it failed");
    expressed.why("hedge.max_hedges", "Kitex sends at most 2 backup requests");
    let backup =
        json!({ "retry_delay_ms": millis, "stop_policy": stop(hedges, limit), "retry_same_node": false });
    Ok((json!({ "enable": true, "type": 1, "backup_policy": backup }), expressed))
}

/// Returns the time after which no retry starts: the rule's own, else its limit of the call.
fn limit(policy: &Policy, expressed: &mut Expressed) -> Result<Option<Duration>, Vec<String>> {
    let hedges = policy.hedge.as_ref().is_some_and(|hedge| matches!(hedge.delay, HedgeDelay::Fixed(_)));
    if policy.retry.is_none() && !hedges {
        expressed.why("timeout", "Kitex's limit of a call is the client's rpc timeout");
        return Ok(None);
    }
    let own = policy.retry.as_ref().and_then(|retry| retry.max_duration);
    let (setting, limit) = match (own, policy.timeout) {
        (Some(own), _) => {
            expressed.why("timeout", "max_duration_ms is policy.retry.max_duration, and ends no call");
            ("policy.retry.max_duration", own)
        }
        (None, Some(timeout)) => {
            let becomes =
                "max_duration_ms ends no call: it stops further retries, as policy.retry.max_duration";
            expressed.moved("timeout", becomes);
            ("policy.timeout", timeout)
        }
        (None, None) => return Ok(None),
    };
    if whole_millis(limit).is_none() {
        return Err(vec![format!("{setting}: Kitex takes whole milliseconds, not {}", seconds(limit))]);
    }
    Ok(Some(limit))
}

/// Returns a backoff of Kitex and what it is in a rule.
fn backoff(retry: &Retry) -> (Value, v1::Backoff) {
    let kind = |kind| v1::Backoff { kind: Some(kind) };
    let jitter = v1::Jitter::None.into();
    let exact = |wait: Duration| whole_millis(wait).filter(|millis| *millis > 0).is_some();
    match &retry.backoff {
        Backoff::Always(Waits::None) => {
            (json!({ "backoff_type": "none" }), kind(v1::backoff::Kind::None(v1::NoBackoff {})))
        }
        Backoff::Always(Waits::Fixed { delay, jitter: Jitter::None }) if exact(*delay) => {
            let fixed = v1::FixedBackoff { delay: Some(wire(*delay)), jitter, jitter_share: None };
            let items = json!({ "fix_ms": whole_millis(*delay) });
            (json!({ "backoff_type": "fixed", "cfg_items": items }), kind(v1::backoff::Kind::Fixed(fixed)))
        }
        other => {
            let curve = Curve::of(other);
            let min = up_to_millis(curve.base);
            // Kitex wants more than the shortest wait.
            let max = up_to_millis(curve.max).max(min + Duration::from_millis(1));
            let random =
                v1::RandomBackoff { min: Some(wire(min)), max: Some(wire(max)), jitter, jitter_share: None };
            let items = json!({ "min_ms": whole_millis(min), "max_ms": whole_millis(max) });
            (json!({ "backoff_type": "random", "cfg_items": items }), kind(v1::backoff::Kind::Random(random)))
        }
    }
}
