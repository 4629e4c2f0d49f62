//! Retry breaker: stops retries while too many attempts fail. It never stops a first attempt.
//!
//! A failed attempt is counted **first**. In mode `credit` its retry is then paid for, see `credit`. In mode
//! `ratio` it is free if
//!
//! ```text
//! failures <= ratio x successes   and   failures + successes >= min_samples
//! ```
//!
//! over the sliding window. With ratio 0.1, 90 failures among 1,000 attempts may be retried (90 <= 0.1 x
//! 910), 91 may not. Otherwise the retry takes a token from a purse of `min_failures` tokens. The purse is
//! empty at the start; a retry that succeeds and ten successes in a row each add a token. So a route with one
//! call per second stays usable, and thousands of small callers do not prolong an outage: each retries almost
//! nothing while nothing succeeds.
//!
//! A hedge is sent for a slow attempt that has not failed. It neither takes nor earns credit; it is counted
//! as a failure and admitted if
//!
//! ```text
//! failures <= max(ratio x successes, min_failures)   or   failures + successes < min_samples
//! ```
//!
//! In both modes a guard's ratio must admit as well: `failures <= max_ratio x successes`.
//!
//! Every failing attempt counts itself before it is checked. So the number of attempts that a ratio admits is
//! bounded under any interleaving of threads: within one window less one bucket, at most ratio x the
//! successes seen by the last one admitted. Nothing latches: counts leave the window, and successes fill the
//! purses.
//!
//! Source: ByteDance's retry governance (failures against successes, 10 x 1 s, 0.1). The order of counting
//! and checking, the purse and the credit are Damper's.

use crate::fault::Ratio;
use crate::outcome::classify::{Failure, Pushback};
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{BreakerMode, Policy, RetryBreaker};
use crate::time::window::Counts;

/// Default failure codes: the callee is in trouble, whether or not the rule retries the code. All other
/// responses count as successes. Codes that the rule retries count as failures as well, so that retries stay
/// bounded. CANCELLED is included because calls cancelled by their own caller are not counted: if the code
/// arrives, the callee's side gave up.
pub const FAILURES: CodeSet = CodeSet::of(&[
    Code::Cancelled,
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
    Code::Internal,
    Code::Unknown,
    Code::DataLoss,
    Code::Aborted,
]);

/// Returns true if the attempt counts as a failure in the window.
#[must_use]
pub fn is_failure(policy: Option<&Policy>, failure: &Failure) -> bool {
    let retried = policy.filter(|policy| policy.repeats()).map_or(CodeSet::EMPTY, Policy::retryable);
    let replaced = policy.and_then(|policy| policy.retry_breaker).and_then(|breaker| breaker.failure_codes);
    let codes = replaced.unwrap_or(FAILURES).union(retried);
    // A stop sent with the flag adds nothing to the flag.
    codes.contains(failure.code) || failure.pushback == Some(Pushback::Stop) && !failure.no_more_retry
}

/// Returns true if the retry of a failed and counted attempt is free.
#[must_use]
pub fn is_free(breaker: &RetryBreaker, counts: Counts) -> bool {
    let by_ratio = is_within(breaker.ratio, counts) && counts.total() >= u64::from(breaker.min_samples);
    breaker.mode == BreakerMode::Ratio && by_ratio && is_within_guards(breaker, counts)
}

/// Returns true if a slow attempt, counted as failed, may be hedged.
#[must_use]
pub fn admits_hedge(breaker: &RetryBreaker, counts: Counts) -> bool {
    let admits = is_within(breaker.ratio, counts)
        || counts.failures <= u64::from(breaker.min_failures)
        || counts.total() < u64::from(breaker.min_samples);
    admits && is_within_guards(breaker, counts)
}

/// Returns true if guards admit a retry of a failed and counted attempt.
#[must_use]
pub fn is_within_guards(breaker: &RetryBreaker, counts: Counts) -> bool {
    breaker.max_ratio.is_none_or(|ratio| is_within(ratio, counts))
}

fn is_within(ratio: Ratio, Counts { failures, successes }: Counts) -> bool {
    failures.saturating_mul(10_000) <= successes.saturating_mul(u64::from(ratio.bp()))
}

#[cfg(test)]
mod tests;
