//! Ceilings with little or no effect.

use super::{Finding, codes};
use crate::fault::{Millis, Ratio};
use crate::policy::{MAX_ATTEMPTS, Mode, TIMEOUT};
use crate::rules::guard::Guard;

/// Ratio at which the callee serves one retry per two first attempts.
const MUCH: Ratio = Ratio::from_bp(5_000);

pub(super) fn check(guard: &Guard) -> Vec<Finding> {
    let ceiling = guard.ceiling();
    let mut findings = Vec::new();
    if ceiling.max_attempts.is_some_and(|most| most >= MAX_ATTEMPTS.max) {
        let message = format!("{} is the highest value that a rule can have", MAX_ATTEMPTS.max);
        findings.push(Finding::new(codes::CEILING_LIMITS_NOTHING, "ceiling.max_attempts", message));
    }
    if ceiling.min_per_attempt_timeout.is_some_and(|least| least <= TIMEOUT.min) {
        let message = format!("{} is the lowest value that a rule can have", Millis(TIMEOUT.min));
        findings.push(Finding::new(
            codes::CEILING_LIMITS_NOTHING,
            "ceiling.min_per_attempt_timeout",
            message,
        ));
    }
    let Some(limit) = ceiling.repeat_limit else { return findings };
    if limit.mode == Mode::Off {
        findings.push(Finding::new(codes::REPEAT_LIMIT_OFF, "ceiling.repeat_limit.mode", "is off"));
    } else if limit.ratio >= MUCH {
        let message = format!("{0} allows up to {0} retries per first attempt", limit.ratio);
        findings.push(Finding::new(codes::REPEAT_LIMIT_HIGH, "ceiling.repeat_limit.ratio", message));
    }
    findings
}
