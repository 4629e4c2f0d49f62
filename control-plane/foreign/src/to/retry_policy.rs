//! What Envoy's retry policy makes of a rule, in Envoy's own configuration and in Istio's.
//!
//! Envoy's waits are random in [0, (2^n - 1) x base). It sees a status only in the headers of a response, and
//! ends an attempt at its time limit with a reset of its own.

use std::time::Duration;

use damper_core::{Budget, Code, CodeSet, Policy, Ratio, Retry};
use damper_proto::v1;

use crate::backoff::{Curve, allow, wire};
use crate::codes;
use crate::duration::up_to_millis;
use crate::report::Expressed;
use crate::selection::{Callee, Selected};

/// A retry policy of Envoy.
pub(super) struct RetryPolicy {
    pub(super) retries: u32,
    pub(super) conditions: String,
    pub(super) per_try_timeout: Option<Duration>,
    pub(super) base: Duration,
    pub(super) max: Duration,
}

/// Returns the retry policy of a rule; `None` if Envoy retries none of its codes.
pub(super) fn retry_policy(retry: &Retry, max: Max) -> Option<RetryPolicy> {
    let known = codes::known(retry.codes);
    let curve = Curve::of(&retry.backoff);
    let base = up_to_millis(curve.base);
    (!known.is_empty()).then(|| RetryPolicy {
        retries: retry.max_attempts.saturating_sub(1),
        conditions: codes::conditions(known).join(","),
        per_try_timeout: retry.per_attempt_timeout,
        base,
        max: match max {
            Max::Own => up_to_millis(curve.max).max(base),
            Max::TenTimes => base.saturating_mul(10).min(Duration::from_secs(24 * 3600)),
        },
    })
}

/// The longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Max {
    /// Configured.
    Own,
    /// Ten times the first.
    TenTimes,
}

/// States the retry policy, with all that is changed or lost about it.
pub(super) fn express(
    policy: &Policy,
    written: Option<&RetryPolicy>,
    chain_flag: bool,
    expressed: &mut Expressed,
) {
    if let Some((written, retry)) = written.zip(policy.retry.as_ref()) {
        let curve = Curve { base: written.base, factor: Ratio::from_bp(20_000), max: written.max };
        let known = codes::known(retry.codes);
        expressed.policy.retry = Some(v1::Retry {
            max_attempts: Some(retry.max_attempts),
            per_attempt_timeout: written.per_try_timeout.map(wire),
            codes: Some(allow(known.iter())),
            backoff: Some(curve.wire(v1::Jitter::Full, None)),
            ..Default::default()
        });
        expressed.note("retry.codes", code_note(retry.codes, known, retry.per_attempt_timeout.is_some()));
        expressed.note("retry.backoff", "Envoy's wait before retry n is random below (2^n - 1) x base");
        if written.per_try_timeout.is_some() {
            expressed.note("retry.per_attempt_timeout", per_try_note(known));
        }
    } else if policy.retry.is_some() {
        for setting in ["retry.max_attempts", "retry.codes", "retry.backoff", "retry.per_attempt_timeout"] {
            expressed.why(setting, "Envoy has none of its codes: no retries");
        }
    } else {
        expressed.why("retry.per_attempt_timeout", "the rule makes one attempt, which has no retry policy");
    }
    if policy.timeout.is_some() {
        expressed.note("timeout", "a call that it ends fails as UNAVAILABLE, not DEADLINE_EXCEEDED");
    }
    for setting in ["hedge.delay", "hedge.max_hedges"] {
        expressed.why(setting, "Envoy hedges only at the per-try timeout");
    }
    expressed.why("hold_unary", "Envoy does not retry after a response has begun");
    expressed.why(
        "chain.ignore_retry_flag",
        if chain_flag {
            "the filter keeps the flag as baggage, where services propagate baggage"
        } else {
            "Envoy retries even while the service serves a retry; --chain-flag writes a filter"
        },
    );
    let up = "Envoy obeys x-envoy-ratelimited of a response, but no service above learns of it";
    expressed.why("chain.ignore_no_more_retry", up);
}

/// Returns how codes differ at Envoy.
fn code_note(all: CodeSet, known: CodeSet, limited: bool) -> String {
    let mut notes =
        vec!["only a status in the response's headers is retried, not one in trailers".to_owned()];
    let dropped: Vec<_> = all.without(known).iter().map(Code::name).collect();
    if !dropped.is_empty() {
        notes.push(format!("Envoy does not know {}", dropped.join(", ")));
    }
    if limited && known.contains(Code::DeadlineExceeded) && !known.contains(Code::Unavailable) {
        notes.push("a per-try timeout is retried only under reset, which needs UNAVAILABLE".to_owned());
    }
    notes.join("; ")
}

fn per_try_note(known: CodeSet) -> &'static str {
    if known.contains(Code::Unavailable) {
        "an attempt that ends so is a reset, which is retried whatever the codes, and fails as UNAVAILABLE"
    } else {
        "an attempt that ends so is not retried, and fails as UNAVAILABLE"
    }
}

/// True if Envoy retries calls under the policy.
fn retries(policy: &Policy) -> bool {
    policy.retry.as_ref().is_some_and(|retry| !codes::known(retry.codes).is_empty())
}

/// The retry budget of a cluster: one for all rules of the callee.
pub(super) enum ClusterBudget {
    None,
    Same(Budget),
    Conflict,
}

impl ClusterBudget {
    pub(super) fn of(callee: &Callee<'_>) -> Self {
        let policies = callee.rules.iter().map(Selected::policy);
        let mut budgets: Vec<Option<Budget>> = policies.filter(retries).map(|policy| policy.budget).collect();
        budgets.dedup();
        match budgets.as_slice() {
            [Some(budget)] => Self::Same(*budget),
            _ if budgets.iter().all(Option::is_none) => Self::None,
            _ => Self::Conflict,
        }
    }

    /// States the budget for a rule.
    pub(super) fn express(&self, policy: &Policy, expressed: &mut Expressed) {
        match self {
            Self::Same(budget) if retries(policy) => {
                expressed.policy.budget = Some(v1::Budget {
                    ratio: Some(f64::from(budget.ratio.bp()) / 10_000.0),
                    min_per_second: Some(budget.min_per_second),
                });
                expressed.note("budget.ratio", "a share of the requests in flight, not of calls in a window");
                expressed.note("budget.min_per_second", "a number of retries in flight, not per second");
            }
            Self::Conflict => {
                for setting in ["budget.ratio", "budget.min_per_second"] {
                    expressed
                        .why(setting, "a cluster has one retry budget, and the rules of this callee differ");
                }
            }
            Self::Same(_) | Self::None => {}
        }
    }

    /// Returns the percentage with two decimals.
    pub(super) fn percent(budget: &Budget) -> f64 {
        f64::from(budget.ratio.bp()) / 100.0
    }
}
