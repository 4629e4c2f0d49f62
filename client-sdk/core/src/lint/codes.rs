//! All finding codes with severity, meaning and remedy.
//!
//! Findings of the control plane about guards, chains, clients and owners are in the same list, because
//! operators and automation see one set of codes. docs/findings.md explains each; a test compares the two.
//! Codes are only ever added, because scripts depend on them.

use super::Severity;
use super::Severity::{Danger, Hint, Warning};

/// A code with its severity, meaning and remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindingCode {
    /// Stable name, for automation.
    pub code: &'static str,
    /// Severity of all findings with this code.
    pub severity: Severity,
    /// Meaning, one sentence.
    pub meaning: &'static str,
    /// Remedy, one sentence.
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $severity:ident, $meaning:literal, $remedy:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $name: FindingCode =
                FindingCode { code: $code, severity: $severity, meaning: $meaning, remedy: $remedy };
        )*

        /// All codes, in the order of docs/findings.md.
        pub const ALL: &[FindingCode] = &[$($name),*];
    };
}

codes! {
    // Load.
    BREAKER_OFF = "breaker_off", Danger,
        "The rule allows retries or hedges, and neither a retry breaker nor a budget limits them.",
        "Turn the retry breaker of the rule on again, or set a budget.";
    IGNORES_RETRY_FLAG = "ignores_retry_flag", Danger,
        "The rule also retries calls for a request that is itself a retry, so attempts multiply along the chain of services.",
        "Remove chain.ignore_retry_flag from the rule.";
    IGNORES_NO_MORE_RETRY = "ignores_no_more_retry", Warning,
        "The rule retries calls although a service further down the chain reports that its own retries have failed.",
        "Remove chain.ignore_no_more_retry from the rule.";
    RATIO_BOUNDS_LITTLE = "ratio_bounds_little", Warning,
        "The ratio of the retry breaker or budget allows one retry or hedge per two calls, or more.",
        "Set the ratio to a value from 0.1 to 0.2; the default of the retry breaker is 0.1.";
    BUDGET_MINIMUM_HIGH = "budget_minimum_high", Warning,
        "The budget allows every process many retries and hedges per second, even if it has little traffic.",
        "Set budget.min_per_second to 1, or to the rate that one process may add to a failing callee.";
    MIN_FAILURES_HIGH = "min_failures_high", Hint,
        "The retry breaker never opens on routes with little traffic, because they never reach its minimum of calls or failures.",
        "Lower min_failures or min_samples of the retry breaker below the number of failures that such a route has in one window.";
    MAX_RATIO_STOPS_CREDIT = "max_ratio_stops_credit", Hint,
        "A guard's max_retry_breaker_ratio stops all retries at a failure rate at which the retry breaker of the rule (mode credit) still allows some.",
        "Raise max_retry_breaker_ratio in the guard, or limit the retries at the callee instead, with repeat_limit.";
    RULE_FOR_ALL_CALLERS = "rule_for_all_callers", Warning,
        "The rule allows retries or hedges for every call of every service to every service.",
        "Name the callee, or keep the rule in observe mode until its routes have rules of their own.";
    HEDGE_FIXED_DELAY = "hedge_fixed_delay", Warning,
        "Hedges are sent after a fixed delay: if the callee slows down beyond it, the number of calls doubles.",
        "Use hedge.delay.percentile, and set the fixed delay as its min.";
    HEDGE_WITHOUT_BUDGET = "hedge_without_budget", Hint,
        "Only the retry breaker limits hedges, and it counts failures, not load.",
        "Set a budget, so that hedges and retries together stay below a share of the calls.";
    HEDGES_NEAR_BREAKER = "hedges_near_breaker", Warning,
        "Hedges at this percentile alone use up half of the failures that the retry breaker tolerates.",
        "Raise hedge.delay.percentile.at or retry_breaker.ratio, and limit both with a budget.";

    DISPLACES_ENFORCED = "displaces_enforced", Warning,
        "A new rule that is in observe, or off, replaces a less specific rule that is enforced: retries stop on its routes.",
        "Enforce the new rule, or change the less specific one instead, unless its retries should stop there.";

    // Data of the callee.
    NON_IDEMPOTENT_REPEATED = "non_idempotent_repeated", Warning,
        "The method's name suggests that it changes data, and the rule retries after error codes with which the callee may have executed the call.",
        "Retry only UNAVAILABLE, or set call_id and let the handler recognise retries by it.";
    NON_IDEMPOTENT_HEDGED = "non_idempotent_hedged", Warning,
        "The method's name suggests that it changes data, and hedges execute it twice whenever it is slow.",
        "Remove hedge, or set call_id and let the handler recognise extra attempts by it.";
    UNNAMED_REPEATED = "unnamed_repeated", Warning,
        "The rule selects methods with a wildcard, and retries them after error codes with which the callee may have executed the call.",
        "Retry only UNAVAILABLE in this rule. Write a separate rule for each method that may be executed twice.";
    UNCLEAR_REPEATED = "unclear_repeated", Hint,
        "The rule retries after error codes with which the callee may have executed the call, and the method's name does not suggest a read.",
        "Ask the owner of the method whether a second execution does harm; if so, retry only UNAVAILABLE.";
    CALL_ID_MISSING = "call_id_missing", Hint,
        "The method's name suggests that it changes data, and its handler cannot recognise retries.",
        "Set call_id and let the handler recognise retries by it: a call that ends with UNAVAILABLE may have been executed.";

    // Settings without effect.
    NEVER_REPEATS = "never_repeats", Warning,
        "The rule has a retry or hedge block but allows only one attempt.",
        "Raise max_attempts, or remove the block.";
    CODE_NEVER_HELPS = "code_never_helps", Warning,
        "The rule or queue retries after error codes with which the same request fails again.",
        "Remove them from retry.codes, or add them to its deny list.";
    ATTEMPT_TIMEOUT_NOT_RETRIED = "attempt_timeout_not_retried", Warning,
        "Attempts time out with DEADLINE_EXCEEDED, which the rule does not retry: a slow call only fails sooner.",
        "Add DEADLINE_EXCEEDED to retry.codes, or use timeout instead.";
    ATTEMPT_TIMEOUT_USELESS = "attempt_timeout_useless", Warning,
        "The timeout of one attempt is not shorter than the time of the whole call, so no retry follows an attempt that times out.",
        "Set retry.per_attempt_timeout well below timeout and retry.max_duration.";
    ATTEMPTS_DO_NOT_FIT = "attempts_do_not_fit", Hint,
        "The timeout of the call expires before all attempts can use their own timeout.",
        "Shorten retry.per_attempt_timeout, or allow fewer attempts.";
    WAITS_DO_NOT_FIT = "waits_do_not_fit", Warning,
        "The waits between the attempts use up the time of the call, so the last attempts are never sent.",
        "Shorten the backoff, allow fewer attempts, or raise the timeout of the call.";
    HEDGE_NEVER_SENT = "hedge_never_sent", Warning,
        "The call or the attempt times out before a hedge is due, so no hedge is ever sent.",
        "Set the hedge delay well below timeout and retry.per_attempt_timeout.";
    HEDGES_EXCEED_ATTEMPTS = "hedges_exceed_attempts", Warning,
        "max_hedges is higher than the number of extra attempts that max_attempts allows.",
        "Raise retry.max_attempts, which counts hedges too, or lower hedge.max_hedges.";
    BY_CODE_REPEATED = "by_code_repeated", Warning,
        "An error code is in several entries of by_code; only the first of them applies.",
        "List each code in one entry.";
    BY_CODE_NOT_RETRIED = "by_code_not_retried", Warning,
        "by_code sets waits for an error code that the rule does not retry.",
        "Add the code to retry.codes, or remove its waits.";
    REPLAY_LIMIT_ZERO = "replay_limit_zero", Warning,
        "replay_limit_bytes is 0: no request is kept for a retry, so no call can be retried.",
        "Remove replay_limit_bytes, or set it to the size of typical requests.";
    HOLD_WITH_HEDGE = "hold_with_hedge", Hint,
        "hold_unary waits for the whole response, so hedges are sent while a response is already arriving.",
        "Remove hold_unary or hedge, unless calls often fail after their message.";

    // Waits and timeouts.
    BACKOFF_WITHOUT_JITTER = "backoff_without_jitter", Warning,
        "Callers that fail together wait equally long and retry together.",
        "Set jitter: full.";
    BACKOFF_NONE = "backoff_none", Warning,
        "Several retries follow each other without a wait, so they most likely meet the same fault.",
        "Use an exponential backoff, or allow two attempts.";
    BACKOFF_IS_CONSTANT = "backoff_is_constant", Warning,
        "The backoff is not of kind fixed, but its settings make all waits equal.",
        "Change its settings so that the waits differ, or use fixed with jitter.";
    TIMEOUT_ON_STREAMS = "timeout_on_streams", Warning,
        "The rule selects methods with a wildcard, and its timeout also ends long streams among them.",
        "Set timeouts only in rules that name their method, or make sure that there are no streams.";
    NO_DEADLINE = "no_deadline", Hint,
        "The waits between attempts can make a call last long, and only the caller's own deadline ends it.",
        "Set timeout or retry.max_duration in the rule.";

    // Guards.
    CEILING_LIMITS_NOTHING = "ceiling_limits_nothing", Warning,
        "The ceiling of the guard is so high that no rule can exceed it.",
        "Make the ceiling stricter, or remove it.";
    REPEAT_LIMIT_OFF = "repeat_limit_off", Hint,
        "The callee's retry limit is off: retries are neither limited nor counted against it.",
        "Set repeat_limit.mode to observe, which counts the retries it would reject, or remove the limit.";
    REPEAT_LIMIT_HIGH = "repeat_limit_high", Warning,
        "The retry limit of the callee allows one retry per two first attempts, or more.",
        "Set repeat_limit.ratio to a value from 0.1 to 0.2.";

    // Queues.
    QUEUE_WAITS_DO_NOT_FIT = "queue_waits_do_not_fit", Warning,
        "The waits between the attempts of a job are longer than its lifetime, so the last attempts are never made.",
        "Shorten the backoff, allow fewer attempts, or raise expires_after and retry.max_duration.";
    QUEUE_GIVES_UP_EARLY = "queue_gives_up_early", Warning,
        "All attempts of a job fit into less than one hour: in a longer outage the jobs are given up.",
        "Raise max_attempts or the waits of the backoff, so that together they span the longest outage.";

    // Findings of the control plane.
    GUARD_CUTS = "guard_cuts", Warning,
        "A guard allows less than the rule, so the rule is limited to the guard on the routes that both match.",
        "Keep the settings of the rule within the guard, or ask the owner of the guard to raise it.";
    CHAIN_ABOVE_LIMIT = "chain_above_limit", Danger,
        "With the rules in force, one request to the first service of a chain can cause more attempts at the last service than the server allows.",
        "Allow fewer attempts in the rules along the chain. Fix the hops where attempts multiply instead of adding up.";
    CLIENTS_LACK_FEATURE = "clients_lack_feature", Warning,
        "The SDK of some connected services lacks a feature that the rule or guard uses, so the feature is off in them.",
        "Update the SDK of these services, or write the rule without the feature.";
    OWNED_BY_ANOTHER = "owned_by_another", Warning,
        "The rule, guard or queue belongs to another owner than the one that the change names.",
        "Ask the owner, or make the change in the manifests that the owner applies.";
    MORE_FINDINGS = "more_findings", Hint,
        "There are more findings than one response can contain.",
        "Request fewer rules at a time to see the others.";
}
