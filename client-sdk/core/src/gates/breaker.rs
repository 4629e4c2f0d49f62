//! The retry breaker: retries stop while too many attempts fail. It never stops a first attempt.
//!
//! An attempt that failed is counted **first**. In the mode `credit` a retry of it is then paid for, see
//! `credit`. In the mode `ratio` it is free if
//!
//! ```text
//! failures <= ratio x successes   and   failures + successes >= min_samples
//! ```
//!
//! over the sliding window: with ratio 0.1 90 failures among 1,000 attempts may be retried (90 <= 0.1 x 910), 91 may
//! not. Otherwise it is paid for from a purse of `min_failures` tokens, which is empty at the start and which a retry
//! that succeeds and ten successes in a row fill. So a route with a call per second stays usable, and thousands of
//! small callers do not keep an outage alive: each repeats next to nothing while nothing succeeds.
//!
//! A hedge is for an attempt that takes long and has not failed. It neither takes nor gives credit; it is counted as a
//! failure and admitted if
//!
//! ```text
//! failures <= max(ratio x successes, min_failures)   or   failures + successes < min_samples
//! ```
//!
//! In either mode a guard's ratio must admit as well: `failures <= max_ratio x successes`.
//!
//! Because every failing attempt counts itself before it asks, what a ratio admits is bounded under any interleaving
//! of threads: in a span of one window less one bucket it is no more than ratio x the successes seen by the last one
//! that was admitted. Nothing latches: what is older than the window is not counted, and purses fill by successes.
//!
//! Source: ByteDance's retry governance (failures against successes, 10 x 1 s, 0.1); the order of counting and asking,
//! the purse and the credit are ours.

use crate::fault::Ratio;
use crate::outcome::classify::{Failure, Pushback};
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{BreakerMode, Policy, RetryBreaker};
use crate::time::window::Counts;

/// What counts as a failure unless the rule says otherwise: the callee is in trouble, whether or not the
/// rule would retry it. Every other answer is a success: the callee is alive. What the rule retries counts as
/// well, whatever it says: else retries would go unbounded. CANCELLED is among them, for a call that its caller
/// cancelled is not judged at all: where the code arrives the callee's side gave up.
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

/// True if an attempt that ended so counts as a failure in the window.
#[must_use]
pub fn is_failure(policy: Option<&Policy>, failure: &Failure) -> bool {
    let retried = policy.filter(|policy| policy.repeats()).map_or(CodeSet::EMPTY, Policy::retryable);
    let replaced = policy.and_then(|policy| policy.retry_breaker).and_then(|breaker| breaker.failure_codes);
    let codes = replaced.unwrap_or(FAILURES).union(retried);
    // The stop that comes along with the flag says no more than the flag.
    codes.contains(failure.code) || failure.pushback == Some(Pushback::Stop) && !failure.no_more_retry
}

/// True if a retry of an attempt that failed and has been counted costs nothing.
#[must_use]
pub fn is_free(breaker: &RetryBreaker, counts: Counts) -> bool {
    let by_ratio = is_within(breaker.ratio, counts) && counts.total() >= u64::from(breaker.min_samples);
    breaker.mode == BreakerMode::Ratio && by_ratio && is_within_guards(breaker, counts)
}

/// True if an attempt that takes long, and was counted as failed for it, may be hedged.
#[must_use]
pub fn admits_hedge(breaker: &RetryBreaker, counts: Counts) -> bool {
    let admits = is_within(breaker.ratio, counts)
        || counts.failures <= u64::from(breaker.min_failures)
        || counts.total() < u64::from(breaker.min_samples);
    admits && is_within_guards(breaker, counts)
}

/// True if guards let an attempt that failed and has been counted be repeated.
#[must_use]
pub fn is_within_guards(breaker: &RetryBreaker, counts: Counts) -> bool {
    breaker.max_ratio.is_none_or(|ratio| is_within(ratio, counts))
}

fn is_within(ratio: Ratio, Counts { failures, successes }: Counts) -> bool {
    failures.saturating_mul(10_000) <= successes.saturating_mul(u64::from(ratio.bp()))
}

#[cfg(test)]
mod tests;
