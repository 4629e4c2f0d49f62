//! To the service config of gRPC clients (gRFC A6).
//!
//! One document is the configuration of one channel: of one caller to one callee. `retryThrottling` is one
//! per channel, so rules with different breakers lose theirs.

use damper_core::{BreakerMode, HedgeDelay, Policy, Ratio, RetryBreaker};
use damper_proto::v1;
use serde_json::{Value, json};

use super::{Language, Options, Translation, Written, each, set};
use crate::backoff::{Curve, allow, wire};
use crate::duration::seconds;
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

/// More attempts are counted as this number.
const MOST_ATTEMPTS: u32 = 5;
/// Random part of a wait in each direction.
const JITTER_SHARE: f64 = 0.2;
/// Failed calls that a channel starts with; retries stop at half of them.
const TOKENS: u32 = 10;
/// The most that a success earns in mode credit.
const MOST_EARNED: u32 = 2_000;

/// Writes the service config of a callee.
pub(super) fn write(callee: &Callee<'_>, options: &Options, translation: &mut Translation) {
    let throttle = throttle(callee);
    let parts = each(callee, "a gRPC client", translation, |selected, policy| {
        let name = selected.grpc_method().map_err(|problem| vec![problem])?;
        rule(name, policy, options, &throttle)
    });
    if parts.is_empty() {
        return;
    }
    let methods: Vec<Value> = parts.into_iter().map(|(_, method)| method).collect();
    let mut config = json!({ "methodConfig": methods });
    if let Throttle::Same(ratio) = throttle {
        let ratio = f64::from(ratio.bp()) / 10_000.0;
        set(&mut config, "retryThrottling", Some(json!({ "maxTokens": TOKENS, "tokenRatio": ratio })));
    }
    translation.documents.push(config);
}

/// The one breaker of a channel.
enum Throttle {
    /// No rule has one.
    None,
    /// All rules have the same.
    Same(Ratio),
    /// Rules differ.
    Conflict,
}

fn throttle(callee: &Callee<'_>) -> Throttle {
    let policies = callee.rules.iter().map(Selected::policy).filter(|policy| policy.retry.is_some());
    let mut ratios: Vec<Option<Ratio>> =
        policies.map(|policy| policy.retry_breaker.as_ref().map(token_ratio)).collect();
    ratios.sort();
    ratios.dedup();
    match ratios.as_slice() {
        [] | [None] => Throttle::None,
        [Some(ratio)] => Throttle::Same(*ratio),
        _ => Throttle::Conflict,
    }
}

/// Returns the ratio in the three decimals that gRPC keeps, rounded down but not to 0.
fn token_ratio(breaker: &RetryBreaker) -> Ratio {
    let ratio = match breaker.mode {
        BreakerMode::Credit => breaker.earn,
        BreakerMode::Ratio => breaker.ratio,
    };
    Ratio::from_bp((ratio.bp() / 10 * 10).max(10))
}

/// Returns what a channel's throttle is as a breaker.
pub(crate) fn breaker(ratio: Ratio) -> v1::RetryBreaker {
    let share = Some(f64::from(ratio.bp()) / 10_000.0);
    if ratio.bp() <= MOST_EARNED {
        let mode = v1::RetryBreakerMode::Credit.into();
        v1::RetryBreaker { mode, earn: share, ..Default::default() }
    } else {
        let mode = v1::RetryBreakerMode::Ratio.into();
        v1::RetryBreaker { mode, ratio: share, ..Default::default() }
    }
}

fn rule(
    name: Option<(&str, Option<&str>)>,
    policy: &Policy,
    options: &Options,
    throttle: &Throttle,
) -> Written<Value> {
    let mut expressed = Expressed::default();
    let mut written = json!({ "name": [method_name(name)] });
    set(&mut written, "timeout", policy.timeout.map(seconds));
    expressed.policy.timeout = policy.timeout.map(wire);
    if let Some(retry) = &policy.retry {
        let attempts = retry.max_attempts.min(MOST_ATTEMPTS);
        let curve = Curve::of(&retry.backoff);
        let retry_policy = json!({
            "maxAttempts": attempts,
            "initialBackoff": seconds(curve.base),
            "maxBackoff": seconds(curve.max),
            "backoffMultiplier": f64::from(curve.factor.bp()) / 10_000.0,
            "retryableStatusCodes": retry.codes.iter().map(damper_core::Code::name).collect::<Vec<_>>(),
        });
        set(&mut written, "retryPolicy", Some(retry_policy));
        expressed.policy.retry = Some(v1::Retry {
            max_attempts: Some(attempts),
            codes: Some(allow(retry.codes.iter())),
            backoff: Some(curve.wire(v1::Jitter::PlusMinus, Some(JITTER_SHARE))),
            ..Default::default()
        });
        throttled(throttle, &mut expressed);
    } else {
        expressed.why("retry.per_attempt_timeout", "the rule makes one attempt");
        hedging(policy, options.language, &mut written, &mut expressed);
    }
    reasons(policy, options, &mut expressed);
    Ok((written, expressed))
}

/// States the throttle of the channel as the breaker of a rule.
fn throttled(throttle: &Throttle, expressed: &mut Expressed) {
    match throttle {
        Throttle::None => {}
        Throttle::Same(ratio) => {
            expressed.policy.retry_breaker = Some(breaker(*ratio));
            expressed.note(
                "retry_breaker",
                "retryThrottling is one bucket of 10 tokens for the channel: a failed call takes one, below half \
                 no call is retried",
            );
        }
        Throttle::Conflict => expressed.why(
            "retry_breaker",
            "retryThrottling is one for the channel, and the rules of this callee have different breakers",
        ),
    }
}

fn method_name(name: Option<(&str, Option<&str>)>) -> Value {
    match name {
        None => json!({}),
        Some((service, None)) => json!({ "service": service }),
        Some((service, Some(method))) => json!({ "service": service, "method": method }),
    }
}

/// Writes a hedging policy, which excludes a retry policy.
fn hedging(policy: &Policy, language: Language, written: &mut Value, expressed: &mut Expressed) {
    let Some(hedge) = &policy.hedge else { return };
    let HedgeDelay::Fixed(delay) = hedge.delay else { return };
    if language == Language::Hedging {
        let attempts = hedge.max_hedges.saturating_add(1);
        let hedging =
            json!({ "maxAttempts": attempts, "hedgingDelay": seconds(delay), "nonFatalStatusCodes": [] });
        set(written, "hedgingPolicy", Some(hedging));
        let fixed = v1::HedgeDelay { kind: Some(v1::hedge_delay::Kind::Fixed(wire(delay))) };
        expressed.policy.hedge = Some(v1::Hedge { delay: Some(fixed), max_hedges: Some(hedge.max_hedges) });
    }
}

fn reasons(policy: &Policy, options: &Options, expressed: &mut Expressed) {
    let hedge = match (&policy.retry, &policy.hedge, options.language) {
        (Some(_), _, _) => "gRPC has a retry policy or a hedging policy for a method, not both",
        (_, Some(hedge), Language::Hedging) if !matches!(hedge.delay, HedgeDelay::Fixed(_)) => {
            "gRPC hedges after a fixed delay"
        }
        _ => "this language has no hedging; Java, Node and .NET have it",
    };
    expressed.why("hedge.delay", hedge);
    expressed.why("hedge.max_hedges", hedge);
    expressed.why("retry.max_attempts", "a client counts more attempts as 5");
    expressed.why("retry.backoff", "gRPC's waits grow by a factor and vary by 20 %");
    expressed.why("retry.per_attempt_timeout", "gRPC has no time limit of an attempt");
    expressed.why("chain.ignore_retry_flag", "a client retries even while its service serves a retry");
    expressed.why(
        "chain.ignore_no_more_retry",
        "a client obeys a callee's pushback, but sends none to its own callers",
    );
}
