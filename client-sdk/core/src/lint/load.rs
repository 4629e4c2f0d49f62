//! Load by extra attempts: the limits of a rule, and whether they work.

use std::time::Duration;

use super::{Finding, LintContext, Notes, codes};
use crate::fault::{Millis, Percent, Ratio};
use crate::policy::{BreakerMode, HedgeDelay, Mode, Policy, RetryBreaker};
use crate::rules::pattern::Part;
use crate::rules::table::Rule;

/// Ratio at which a failing callee gets half of its traffic in addition.
const MUCH: Ratio = Ratio::from_bp(5_000);
/// Extra attempts per second and process that are too many for a minimum.
const MANY_PER_SECOND: u32 = 100;
/// Failures per window, or per second if the window is shorter, that are still few.
const FEW_FAILURES: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);

pub(super) fn check(rule: &Rule, context: &LintContext, findings: &mut Vec<Finding>) {
    let policy = rule.policy();
    let mut notes = Notes { findings };
    breaker_off(policy, &mut notes);
    ratio(policy, &mut notes);
    max_ratio(policy, &mut notes);
    budget_minimum(policy, &mut notes);
    minimum(policy, context, &mut notes);
    flags(policy, &mut notes);
    for_all(rule, &mut notes);
    hedge(policy, &mut notes);
}

fn breaker_off(policy: &Policy, notes: &mut Notes<'_>) {
    if policy.retry_breaker.is_none() && policy.budget.is_none() {
        let attempts = policy.max_attempts();
        notes.add(
            codes::BREAKER_OFF,
            "retry_breaker.enabled",
            format!(
                "is false and there is no budget: while the callee fails, every call is sent {attempts} times"
            ),
        );
    }
}

/// With credit only hedges use the ratio and its minima.
fn uses_ratio(policy: &Policy, breaker: &RetryBreaker) -> bool {
    breaker.mode == BreakerMode::Ratio || policy.hedge.is_some()
}

/// The lowest limit by a share decides.
fn ratio(policy: &Policy, notes: &mut Notes<'_>) {
    let breaker = policy.retry_breaker.filter(|breaker| uses_ratio(policy, breaker));
    let by_breaker = breaker.map(|breaker| (breaker.ratio, "retry_breaker.ratio"));
    let by_budget = policy.budget.map(|budget| (budget.ratio, "budget.ratio"));
    let Some((ratio, field)) = by_breaker.into_iter().chain(by_budget).min() else { return };
    if ratio >= MUCH {
        let to = if field == "budget.ratio" { "call" } else { "success" };
        notes.add(
            codes::RATIO_BOUNDS_LITTLE,
            field,
            format!("{ratio} allows up to {ratio} extra attempts per {to}"),
        );
    }
}

fn max_ratio(policy: &Policy, notes: &mut Notes<'_>) {
    let credit = policy.retry_breaker.filter(|breaker| breaker.mode == BreakerMode::Credit);
    let Some(ratio) = credit.and_then(|breaker| breaker.max_ratio) else { return };
    let share = share_of(ratio);
    let message = format!("{ratio} stops all retries while more than {share} % of the attempts fail");
    notes.add(codes::MAX_RATIO_STOPS_CREDIT, "retry_breaker.max_ratio", message);
}

/// Returns the share of attempts that may fail at a ratio of failures to successes.
fn share_of(ratio: Ratio) -> Percent {
    Percent::from_hundredths(10_000 * ratio.bp() / (10_000 + ratio.bp()))
}

fn budget_minimum(policy: &Policy, notes: &mut Notes<'_>) {
    let Some(budget) = policy.budget.filter(|budget| budget.min_per_second >= MANY_PER_SECOND) else {
        return;
    };
    let many = budget.min_per_second;
    notes.add(
        codes::BUDGET_MINIMUM_HIGH,
        "budget.min_per_second",
        format!(
            "every process may send {many} extra attempts per second on each route, whatever its traffic"
        ),
    );
}

/// Returns the higher of the retry breaker's minima, and its setting. Below `min_samples` only hedges are
/// free.
fn free_failures(policy: &Policy, breaker: &RetryBreaker) -> (u32, &'static str) {
    let by_samples = if policy.hedge.is_some() { breaker.min_samples.saturating_sub(1) } else { 0 };
    if by_samples > breaker.min_failures {
        (by_samples, "retry_breaker.min_samples")
    } else {
        (breaker.min_failures, "retry_breaker.min_failures")
    }
}

/// Returns true if a minimum is above the default, which suits quiet routes, and no budget limits it.
pub(super) fn has_high_minimum(policy: &Policy) -> bool {
    let most = RetryBreaker::default().min_failures;
    let breaker = policy.retry_breaker.filter(|breaker| uses_ratio(policy, breaker));
    policy.budget.is_none() && breaker.is_some_and(|breaker| free_failures(policy, &breaker).0 > most)
}

fn minimum(policy: &Policy, context: &LintContext, notes: &mut Notes<'_>) {
    let Some(breaker) = policy.retry_breaker.filter(|_| has_high_minimum(policy)) else { return };
    let (free, field) = free_failures(policy, &breaker);
    let window = breaker.window.length();
    let per = Millis(window);
    let per_second = u128::from(free) * 1_000 / window.as_millis().max(1);
    let message = match context.calls_per_s {
        Some(calls) => {
            let attempts = u128::from(calls).saturating_mul(u128::from(policy.max_attempts()));
            let most = attempts.saturating_mul(window.as_millis()) / 1_000;
            (u128::from(free) >= most).then(|| {
                format!(
                    "{free} failures per {per} never stop retries, and at {calls} calls per second a process \
                     makes at most {most} attempts in that time"
                )
            })
        }
        None if window < SECOND && per_second > u128::from(FEW_FAILURES) => Some(format!(
            "{free} failures per {per}, process and route never stop retries: that is {per_second} per second"
        )),
        None => (free > FEW_FAILURES)
            .then(|| format!("{free} failures per {per}, process and route never stop retries")),
    };
    if let Some(message) = message {
        notes.add(codes::MIN_FAILURES_HIGH, field, message);
    }
}

fn flags(policy: &Policy, notes: &mut Notes<'_>) {
    let attempts = policy.max_attempts();
    if policy.chain.ignore_retry_flag {
        notes.add(
            codes::IGNORES_RETRY_FLAG,
            "chain.ignore_retry_flag",
            format!("each attempt of a caller is sent {attempts} times here: attempts multiply"),
        );
    }
    if policy.chain.ignore_no_more_retry {
        notes.add(
            codes::IGNORES_NO_MORE_RETRY,
            "chain.ignore_no_more_retry",
            format!("a call that a hop below gave up on is still sent {attempts} times"),
        );
    }
}

fn for_all(rule: &Rule, notes: &mut Notes<'_>) {
    let pattern = rule.pattern();
    let is_for_all = pattern.caller_service == Part::Any && pattern.callee_service == Part::Any;
    // Observing all calls is the recommended start.
    if is_for_all && rule.policy().mode == Mode::Enforce {
        let field = if rule.policy().retry.is_some() { "retry.max_attempts" } else { "hedge.max_hedges" };
        let attempts = rule.policy().max_attempts();
        notes.add(
            codes::RULE_FOR_ALL_CALLERS,
            field,
            format!(
                "every caller may send every callee {attempts} attempts per call, if no more specific rule applies"
            ),
        );
    }
}

fn hedge(policy: &Policy, notes: &mut Notes<'_>) {
    let Some(hedge) = policy.hedge else { return };
    if let HedgeDelay::Fixed(delay) = hedge.delay {
        let delay = Millis(delay);
        notes.add(
            codes::HEDGE_FIXED_DELAY,
            "hedge.delay.fixed",
            format!("if the callee takes longer than {delay}, every call is sent at least twice"),
        );
    }
    if policy.budget.is_none() {
        notes.add(codes::HEDGE_WITHOUT_BUDGET, "budget", "is not set, so nothing limits hedges by load");
    }
    if let (HedgeDelay::Percentile { at, .. }, Some(breaker)) = (hedge.delay, policy.retry_breaker) {
        hedges_near(at, breaker.ratio, notes);
    }
}

/// Each attempt overtaken by a hedge counts as a failure.
fn hedges_near(at: Percent, ratio: Ratio, notes: &mut Notes<'_>) {
    let hedged = 10_000_u32.saturating_sub(at.hundredths());
    let borne = share_of(ratio);
    if hedged * 2 > borne.hundredths() {
        let hedged = Percent::from_hundredths(hedged);
        let message = format!(
            "percentile {at} hedges {hedged} % of the attempts; each counts as a failure, and the retry breaker \
             stops hedges and retries above {borne} % failures"
        );
        notes.add(codes::HEDGES_NEAR_BREAKER, "hedge.delay.percentile.at", message);
    }
}
