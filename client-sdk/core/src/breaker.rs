//! The retry breaker: retries stop while too many attempts fail. It never stops a first attempt.
//!
//! An attempt that failed is counted **first**; then it may be retried if
//!
//! ```text
//! failures <= max(ratio x successes, min_failures)   or   failures + successes < min_samples
//! ```
//!
//! over the sliding window. With ratio 0.1 and no minimum 90 failures among 1,000 attempts may be retried
//! (90 <= 0.1 x 910), 91 may not. `min_failures` keeps routes with a call per second usable.
//!
//! Because every failing attempt counts itself before it asks, the bound holds under any interleaving of
//! threads: in a span of one window less one bucket no more retries are admitted than
//! max(ratio x the successes seen by the last admitted one, `min_failures`, `min_samples` - 1). Nothing
//! latches: what is older than the window is not counted, so retries resume at the latest one window after
//! the fault clears.
//!
//! The bare ratio switches retries off when a share of ratio / (1 + ratio) of the attempts fails, 9.1 % for
//! 0.1, although most retries would succeed; and it lets hundreds through when an outage begins, because so
//! many successes precede it. **Adaptive** asks what retries achieve. They are refused
//! - above the ratio while at least 10 of them ended in the window and fewer than half of these succeeded,
//! - at any ratio during a run of 20 failures without a success between, but for one probe per bucket: where
//!   only retries succeed nothing else could end the run,
//! - over the budget, which is 0.2 and 1 per second unless the rule sets it.
//!
//! Source: ByteDance's retry governance (failures against successes, 10 x 1 s, 0.1); the minimum, the order of
//! counting and asking, and the adaptive mode are ours.

use crate::classify::{Failure, Pushback};
use crate::code::{Code, CodeSet};
use crate::policy::{BreakerMode, Policy, RetryBreaker};
use crate::window::Counts;

/// So many retries must have ended in the window before their success rate counts.
const JUDGED_RETRIES: u64 = 10;
/// A run of so many failures is an outage.
const OUTAGE_RUN: u64 = 20;

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

/// What a breaker goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Attempts that ended in the window.
    pub attempts: Counts,
    /// Those of them that were retries or hedges.
    pub repeats: Counts,
    /// Failures without a success between.
    pub run: u64,
}

/// What a breaker says to a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Go.
    Admitted,
    /// Go if no other extra attempt was sent in this bucket.
    Probe,
    /// Not now.
    Refused,
}

/// May an attempt that failed and has been counted be retried?
#[must_use]
pub fn judge(breaker: &RetryBreaker, evidence: Evidence) -> Word {
    let Evidence { attempts, repeats, run } = evidence;
    let below = admits(breaker, attempts);
    match breaker.mode {
        BreakerMode::Ratio if below => Word::Admitted,
        BreakerMode::Ratio => Word::Refused,
        BreakerMode::Adaptive if run >= OUTAGE_RUN => Word::Probe,
        BreakerMode::Adaptive if below || !are_futile(repeats) => Word::Admitted,
        BreakerMode::Adaptive => Word::Refused,
    }
}

/// Enough retries ended, and fewer than half of them succeeded.
fn are_futile(Counts { failures, successes }: Counts) -> bool {
    failures.saturating_add(successes) >= JUDGED_RETRIES && successes < failures
}

/// True if an attempt that failed and has been counted may be retried by the ratio.
#[must_use]
pub fn admits(breaker: &RetryBreaker, counts: Counts) -> bool {
    let Counts { failures, successes } = counts;
    let by_ratio = failures.saturating_mul(10_000) <= successes.saturating_mul(u64::from(breaker.ratio.bp()));
    by_ratio
        || failures <= u64::from(breaker.min_failures)
        || failures.saturating_add(successes) < u64::from(breaker.min_samples)
}

#[cfg(test)]
mod tests;
