//! From the service config of gRPC clients.

use damper_core::{Code, Ratio};
use damper_document::Value;
use damper_proto::v1;
use serde::Deserialize;

use super::{Finding, Reader, code, finding, join, key};
use crate::backoff::{Curve, allow, wire};
use crate::to::breaker;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ServiceConfig {
    method_config: Vec<MethodConfig>,
    retry_throttling: Option<Throttling>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MethodConfig {
    name: Vec<Name>,
    timeout: Option<String>,
    retry_policy: Option<RetryPolicy>,
    hedging_policy: Option<HedgingPolicy>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Name {
    service: String,
    method: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RetryPolicy {
    max_attempts: u32,
    initial_backoff: Option<String>,
    max_backoff: Option<String>,
    backoff_multiplier: f64,
    retryable_status_codes: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct HedgingPolicy {
    max_attempts: u32,
    hedging_delay: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Throttling {
    token_ratio: f64,
}

/// Reads one service config.
pub(super) fn read(value: Value, path: &str, reader: &mut Reader<'_>) {
    let Some(config) = reader.shape::<ServiceConfig>(value, path) else { return };
    let options = reader.options;
    let Some(callee) = &options.callee else {
        return reader.fault(path, "a gRPC service config does not name its callee; add --callee");
    };
    let throttle = config.retry_throttling.as_ref().map(|throttling| throttling.token_ratio);
    for (i, method) in config.method_config.iter().enumerate() {
        let path = join(path, &format!("methodConfig[{i}]"));
        let mut findings = Vec::new();
        let Some(policy) = policy(method, &path, throttle, reader, &mut findings) else { continue };
        if method.name.is_empty() {
            reader.fault(&join(&path, "name"), "required");
        }
        for (n, name) in method.name.iter().enumerate() {
            let pattern = match (name.service.as_str(), name.method.as_str()) {
                ("", "") => "*".to_owned(),
                ("", _) => {
                    reader.fault(&join(&path, &format!("name[{n}].service")), "required with a method");
                    continue;
                }
                (service, "") => format!("{service}/*"),
                (service, method) => format!("{service}/{method}"),
            };
            let key = key(options.caller.as_deref(), None, callee, &pattern);
            reader.add(&path, key, policy.clone(), findings.clone());
        }
    }
}

fn policy(
    method: &MethodConfig,
    path: &str,
    throttle: Option<f64>,
    reader: &mut Reader<'_>,
    findings: &mut Vec<Finding>,
) -> Option<v1::Policy> {
    let timeout = reader.duration(&join(path, "timeout"), method.timeout.as_ref()).map(wire);
    let mut policy = v1::Policy { timeout, ..Default::default() };
    if let Some(retry) = &method.retry_policy {
        policy.retry = Some(read_retry(retry, &join(path, "retryPolicy"), reader, findings)?);
        if let Some(ratio) = throttle {
            policy.retry_breaker = Some(breaker(ratio_of(ratio)));
            findings
                .push(finding(path, "retryThrottling is a bucket for the channel; the rule has a breaker"));
        } else {
            findings.push(finding(
                path,
                "nothing limits its retries: no retryThrottling; the rule has a breaker",
            ));
        }
    }
    if let Some(hedging) = &method.hedging_policy {
        let path = join(path, "hedgingPolicy");
        let at = join(&path, "hedgingDelay");
        let Some(delay) =
            reader.duration(&at, hedging.hedging_delay.as_ref()).filter(|delay| !delay.is_zero())
        else {
            reader.fault(&at, "the delay of a hedge must be at least 1ms");
            return None;
        };
        let delay = v1::HedgeDelay { kind: Some(v1::hedge_delay::Kind::Fixed(wire(delay))) };
        let hedges = hedging.max_attempts.min(5).saturating_sub(1);
        policy.hedge = Some(v1::Hedge { delay: Some(delay), max_hedges: Some(hedges) });
    }
    Some(policy)
}

fn read_retry(
    retry: &RetryPolicy,
    path: &str,
    reader: &mut Reader<'_>,
    findings: &mut Vec<Finding>,
) -> Option<v1::Retry> {
    let mut codes: Vec<Code> = Vec::new();
    for (i, name) in retry.retryable_status_codes.iter().enumerate() {
        match code(name) {
            Some(code) => codes.push(code),
            None => reader
                .fault(&join(path, &format!("retryableStatusCodes[{i}]")), format!("{name:?} is no code")),
        }
    }
    let base = reader.duration(&join(path, "initialBackoff"), retry.initial_backoff.as_ref());
    let max = reader.duration(&join(path, "maxBackoff"), retry.max_backoff.as_ref());
    let (Some(base), Some(max)) = (base, max) else {
        reader.fault(path, "initialBackoff and maxBackoff are required");
        return None;
    };
    if retry.max_attempts > 5 {
        let message = format!("a client counts {} as 5, and so does the rule", retry.max_attempts);
        findings.push(finding(&join(path, "maxAttempts"), message));
    }
    let curve = Curve { base, factor: ratio_of(retry.backoff_multiplier), max: max.max(base) };
    Some(v1::Retry {
        max_attempts: Some(retry.max_attempts.min(5)),
        codes: Some(allow(codes)),
        backoff: Some(curve.wire(v1::Jitter::PlusMinus, Some(0.2))),
        ..Default::default()
    })
}

/// Returns the nearest ratio in steps of 0.0001; a number that no ratio has becomes one that no rule has.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
fn ratio_of(number: f64) -> Ratio {
    Ratio::from_bp((number * 10_000.0).round() as u32)
}
