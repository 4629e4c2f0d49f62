//! A retry policy of Envoy as the retry of a rule.

use std::time::Duration;

use damper_core::Ratio;
use damper_proto::v1;

use super::{Finding, Reader, finding, join};
use crate::backoff::{Curve, allow, wire};
use crate::codes;

/// A retry policy as it was read; none of a value = the source's default.
pub(super) struct RetryPolicy<'p> {
    /// Path of the policy in the document.
    pub(super) path: &'p str,
    /// Field of the conditions.
    pub(super) field: &'static str,
    pub(super) retries: u32,
    pub(super) conditions: &'p str,
    pub(super) per_try_timeout: Option<Duration>,
    pub(super) base: Option<Duration>,
    pub(super) max: Option<Duration>,
}

/// Envoy's first wait.
const BASE: Duration = Duration::from_millis(25);

/// Returns the retry of a rule.
pub(super) fn read(
    policy: &RetryPolicy<'_>,
    reader: &mut Reader<'_>,
    findings: &mut Vec<Finding>,
) -> Option<v1::Retry> {
    let conditions = codes::read(policy.conditions);
    let path = join(policy.path, policy.field);
    for unknown in &conditions.unknown {
        reader.fault(&path, format!("unknown retry condition {unknown:?}"));
    }
    findings.extend(conditions.findings.into_iter().map(|message| finding(&path, message)));
    if conditions.codes.is_empty() {
        findings.push(finding(&path, "no code of gRPC is retried: the rule has no retries"));
        return None;
    }
    let base = policy.base.unwrap_or(BASE);
    let max = policy.max.unwrap_or_else(|| base.saturating_mul(10)).max(base);
    if policy.base.is_none() {
        findings.push(finding(policy.path, "unsaid: the first wait is 25ms"));
    }
    findings.push(finding(policy.path, "nothing limits its retries over time; the rule has a breaker"));
    let curve = Curve { base, factor: Ratio::from_bp(20_000), max };
    Some(v1::Retry {
        max_attempts: Some(policy.retries.saturating_add(1)),
        per_attempt_timeout: policy.per_try_timeout.map(wire),
        codes: Some(allow(conditions.codes)),
        backoff: Some(curve.wire(v1::Jitter::Full, None)),
        ..Default::default()
    })
}
