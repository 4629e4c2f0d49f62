//! From Kitex: the retry policies of a client by method.
//!
//! Kitex's failure retry retries time-outs alone, so its rule has DEADLINE_EXCEEDED. A missing number of
//! retries is 0: Kitex's defaults apply to policies that code makes. A disabled policy counts as none: its
//! calls have the policy of `*`.

use std::collections::BTreeMap;
use std::time::Duration;

use damper_core::Code;
use damper_document::Value;
use damper_proto::v1;
use serde::Deserialize;

use super::{Finding, Reader, finding, join, key};
use crate::backoff::{allow, wire};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Policy {
    enable: bool,
    r#type: u32,
    failure_policy: Option<Failure>,
    backup_policy: Option<Backup>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Failure {
    stop_policy: Stop,
    backoff_policy: Option<Backoff>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Backup {
    retry_delay_ms: u32,
    stop_policy: Stop,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Stop {
    max_retry_times: u32,
    max_duration_ms: u32,
    disable_chain_stop: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Backoff {
    backoff_type: String,
    cfg_items: BTreeMap<String, f64>,
}

/// Reads one map of policies.
pub(super) fn read(value: Value, path: &str, reader: &mut Reader<'_>) {
    let Value::Object(policies) = value else {
        return reader
            .fault(path, "the Kitex policies must be an object that maps each method to its policy");
    };
    let options = reader.options;
    let Some(callee) = &options.callee else {
        return reader.fault(path, "a policy of Kitex does not name its callee; add --callee");
    };
    let enabled = |value: &Value| value.get("enable").and_then(Value::as_bool) == Some(true);
    let all = policies.get("*").is_some_and(enabled);
    let disabled: Vec<String> =
        policies.iter().filter(|(_, value)| !enabled(value)).map(|(name, _)| name.clone()).collect();
    for (name, value) in policies {
        let path = join(path, &name);
        let Some(read) = reader.shape::<Policy>(value, &path) else { continue };
        let method = match (name.as_str(), &options.service) {
            ("*", _) => "*".to_owned(),
            (name, Some(service)) => format!("{service}/{name}"),
            (_, None) => {
                reader.fault(&path, "a Kitex policy names a method without its gRPC service; add --service");
                continue;
            }
        };
        if all && !read.enable {
            continue;
        }
        let mut findings = Vec::new();
        if name == "*" && all {
            let message = |name| format!("{name} is disabled, so Kitex gives its calls this policy");
            findings.extend(disabled.iter().map(|name| finding(&path, message(name))));
        }
        let policy =
            if read.enable { policy(&read, &path, reader, &mut findings) } else { Some(Default::default()) };
        if let Some(policy) = policy {
            reader.add(&path, key(options.caller.as_deref(), None, callee, &method), policy, findings);
        }
    }
}

fn policy(
    read: &Policy,
    path: &str,
    reader: &mut Reader<'_>,
    findings: &mut Vec<Finding>,
) -> Option<v1::Policy> {
    match (read.r#type, &read.failure_policy, &read.backup_policy) {
        (0, Some(failure), _) => {
            let path = join(path, "failure_policy");
            let stop = &failure.stop_policy;
            if stop.max_retry_times == 0 {
                return Some(Default::default());
            }
            stop_findings(stop, &path, findings);
            findings.push(finding(&path, "Kitex retries time-outs only, unless its code does more"));
            let retry = v1::Retry {
                max_attempts: Some(stop.max_retry_times.saturating_add(1)),
                max_duration: Some(millis(stop.max_duration_ms)).filter(|limit| *limit != millis(0)),
                codes: Some(allow([Code::DeadlineExceeded])),
                backoff: Some(backoff(failure.backoff_policy.as_ref(), &path, reader)?),
                ..Default::default()
            };
            Some(v1::Policy { retry: Some(retry), ..Default::default() })
        }
        (1, _, Some(backup)) => {
            let path = join(path, "backup_policy");
            if backup.stop_policy.max_retry_times == 0 {
                return Some(Default::default());
            }
            stop_findings(&backup.stop_policy, &path, findings);
            findings.push(finding(&path, "the first attempt that finishes wins in Kitex, even if it failed"));
            let fixed = v1::hedge_delay::Kind::Fixed(millis(backup.retry_delay_ms));
            let hedge = v1::Hedge {
                delay: Some(v1::HedgeDelay { kind: Some(fixed) }),
                max_hedges: Some(backup.stop_policy.max_retry_times),
            };
            Some(v1::Policy { hedge: Some(hedge), ..Default::default() })
        }
        _ => {
            reader.fault(&join(path, "type"), "must be 0 with failure_policy, or 1 with backup_policy");
            None
        }
    }
}

fn stop_findings(stop: &Stop, path: &str, findings: &mut Vec<Finding>) {
    findings.push(finding(path, "Kitex's breaker counts failed calls of the method; the rule has its own"));
    if stop.disable_chain_stop {
        findings
            .push(finding(&join(path, "stop_policy.disable_chain_stop"), "retries multiply along the chain"));
    }
}

fn backoff(backoff: Option<&Backoff>, path: &str, reader: &mut Reader<'_>) -> Option<v1::Backoff> {
    use v1::backoff::Kind;
    let path = join(path, "backoff_policy");
    let none = Backoff::default();
    let backoff = backoff.unwrap_or(&none);
    let mut wait = |name: &str| {
        let number = backoff.cfg_items.get(name).copied();
        match number.filter(|number| *number >= 0.0 && *number <= 86_400_000.0 && number.fract() == 0.0) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
            Some(number) => Some(millis(number as u32)),
            None => {
                reader.fault(
                    &join(&path, &format!("cfg_items.{name}")),
                    "must be whole milliseconds, 0 to 24h",
                );
                None
            }
        }
    };
    let kind = match backoff.backoff_type.as_str() {
        "" | "none" => Kind::None(v1::NoBackoff {}),
        "fixed" => Kind::Fixed(v1::FixedBackoff { delay: Some(wait("fix_ms")?), ..Default::default() }),
        "random" => {
            let (min, max) = (wait("min_ms")?, wait("max_ms")?);
            Kind::Random(v1::RandomBackoff { min: Some(min), max: Some(max), ..Default::default() })
        }
        _ => {
            reader.fault(&join(&path, "backoff_type"), "must be none, fixed or random");
            return None;
        }
    };
    Some(v1::Backoff { kind: Some(kind) })
}

fn millis(millis: u32) -> prost_types::Duration {
    wire(Duration::from_millis(millis.into()))
}
