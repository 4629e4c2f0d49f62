//! Waits and timeouts that do not fit together.

use std::time::Duration;

use super::waits::{End, waits};
use super::{Finding, Notes, codes, retries};
use crate::fault::Millis;
use crate::outcome::code::Code;
use crate::policy::{HedgeDelay, Policy, Retry};
use crate::rules::pattern::MethodPart;
use crate::rules::table::Rule;

/// Total wait above which a call needs a limit of its own.
const LONG: Duration = Duration::from_secs(1);

/// Checks timeouts of methods that the rule does not name.
pub(super) fn streams(rule: &Rule, findings: &mut Vec<Finding>) {
    if matches!(rule.pattern().callee_method, MethodPart::Exact(_)) {
        return;
    }
    let policy = rule.policy();
    let attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    let times = [("timeout", policy.timeout), ("retry.per_attempt_timeout", attempt)];
    let mut notes = Notes { findings };
    for (field, time) in times.into_iter().filter_map(|(field, time)| Some((field, time?))) {
        let methods = &rule.pattern().callee_method;
        let message = format!("streams of {methods} end after {}", Millis(time));
        notes.add(codes::TIMEOUT_ON_STREAMS, field, message);
    }
}

pub(super) fn check(policy: &Policy, findings: &mut Vec<Finding>) {
    let mut notes = Notes { findings };
    if let Some(retry) = &policy.retry {
        attempt_timeout(policy, retry, &mut notes);
        if policy.hedge.is_none() {
            waits_fit(policy, retry, &mut notes);
        }
    }
    hedge_delay(policy, &mut notes);
    no_deadline(policy, &mut notes);
}

/// Returns the limits of a call as a whole.
fn ends(policy: &Policy) -> impl Iterator<Item = (&'static str, Duration)> {
    let max_duration = policy.retry.as_ref().and_then(|retry| retry.max_duration);
    let ends = [("timeout", policy.timeout), ("retry.max_duration", max_duration)];
    ends.into_iter().filter_map(|(name, end)| Some((name, end?)))
}

fn attempt_timeout(policy: &Policy, retry: &Retry, notes: &mut Notes<'_>) {
    let Some(attempt) = retry.per_attempt_timeout else { return };
    let field = "retry.per_attempt_timeout";
    if !retry.codes.contains(Code::DeadlineExceeded) {
        let message = format!("an attempt times out after {} and is not retried", Millis(attempt));
        notes.add(codes::ATTEMPT_TIMEOUT_NOT_RETRIED, field, message);
    }
    if let Some((name, end)) = ends(policy).find(|(_, end)| attempt >= *end) {
        let message = format!("{} is not below {name} ({})", Millis(attempt), Millis(end));
        notes.add(codes::ATTEMPT_TIMEOUT_USELESS, field, message);
        return;
    }
    let Some(timeout) = policy.timeout.filter(|_| policy.hedge.is_none()) else { return };
    let all = waits(&retry.backoff, retry.codes, retries(policy), End::Shortest);
    let attempts = u32::try_from(all.len()).unwrap_or(u32::MAX).saturating_add(1);
    let waiting = all.iter().fold(Duration::ZERO, |sum, wait| sum.saturating_add(*wait));
    let needed = attempt.saturating_mul(attempts).saturating_add(waiting);
    if needed > timeout && waiting < timeout {
        let message = format!(
            "{attempts} attempts of {} and the waits between them take at least {}, more than timeout ({})",
            Millis(attempt),
            Millis(needed),
            Millis(timeout)
        );
        notes.add(codes::ATTEMPTS_DO_NOT_FIT, field, message);
    }
}

/// Attempts count as instant here: the waits alone do not fit.
fn waits_fit(policy: &Policy, retry: &Retry, notes: &mut Notes<'_>) {
    let all = waits(&retry.backoff, retry.codes, retries(policy), End::Shortest);
    for (name, end) in ends(policy) {
        let mut waited = Duration::ZERO;
        for (n, wait) in all.iter().enumerate() {
            waited = waited.saturating_add(*wait);
            if waited >= end {
                let message = format!(
                    "attempt {} starts {} after the first at the earliest, and {name} is {}",
                    n + 2,
                    Millis(waited),
                    Millis(end)
                );
                notes.add(codes::WAITS_DO_NOT_FIT, "retry.backoff", message);
                break;
            }
        }
    }
}

fn hedge_delay(policy: &Policy, notes: &mut Notes<'_>) {
    let Some(hedge) = policy.hedge else { return };
    let (field, delay) = match hedge.delay {
        HedgeDelay::Fixed(delay) => ("hedge.delay.fixed", delay),
        HedgeDelay::Percentile { min, .. } => ("hedge.delay.percentile.min", min),
    };
    let attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    let attempt = attempt.map(|attempt| ("retry.per_attempt_timeout", attempt));
    if let Some((name, end)) = ends(policy).chain(attempt).find(|(_, end)| delay >= *end) {
        let message = format!("{} is not below {name} ({})", Millis(delay), Millis(end));
        notes.add(codes::HEDGE_NEVER_SENT, field, message);
    }
}

fn no_deadline(policy: &Policy, notes: &mut Notes<'_>) {
    let Some(retry) = policy.retry.as_ref().filter(|_| ends(policy).next().is_none()) else { return };
    let all = waits(&retry.backoff, retry.codes, retries(policy), End::Longest);
    let longest = all.iter().fold(Duration::ZERO, |sum, wait| sum.saturating_add(*wait));
    if longest >= LONG {
        let message = format!(
            "neither timeout nor max_duration is set, and the waits alone can take {}",
            Millis(longest)
        );
        notes.add(codes::NO_DEADLINE, "timeout", message);
    }
}
