//! Every code that a finding can have: how grave it is, what it means and what to do about it.
//!
//! The one list. What only a control plane can find (guards, chain, clients, figures) is here too, because operators
//! and automation meet one set of codes; docs/findings.md says more of each, and a test holds the two together.
//! Codes are only ever added: scripts allow and refuse by them.

use super::Severity;
use super::Severity::{Danger, Hint, Warning};

/// A code and what is always so of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindingCode {
    /// Stable, for automation.
    pub code: &'static str,
    /// How grave it is.
    pub severity: Severity,
    /// What it means, in one sentence.
    pub meaning: &'static str,
    /// What to do about it, in one sentence.
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $severity:ident, $meaning:literal, $remedy:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $name: FindingCode =
                FindingCode { code: $code, severity: $severity, meaning: $meaning, remedy: $remedy };
        )*

        /// All of them, in the order of docs/findings.md.
        pub const ALL: &[FindingCode] = &[$($name),*];
    };
}

codes! {
    // What a rule does to the load.
    BREAKER_OFF = "breaker_off", Danger,
        "The rule repeats calls and neither a retry breaker nor a budget bounds how many.",
        "Leave the retry breaker on, or set a budget.";
    IGNORES_RETRY_FLAG = "ignores_retry_flag", Danger,
        "The rule repeats calls even in serving a request that is a repeat itself, so attempts multiply along the chain.",
        "Leave out chain.ignore_retry_flag.";
    IGNORES_NO_MORE_RETRY = "ignores_no_more_retry", Warning,
        "The rule repeats calls although a hop below says that its own retries did not help.",
        "Leave out chain.ignore_no_more_retry.";
    RATIO_BOUNDS_LITTLE = "ratio_bounds_little", Warning,
        "The ratio of retry breaker or budget lets through one extra attempt for every two calls or more.",
        "Set a ratio of 0.1 to 0.2; the retry breaker's default is 0.1.";
    BUDGET_MINIMUM_HIGH = "budget_minimum_high", Warning,
        "The budget lets every process send many extra attempts per second whatever the traffic.",
        "Set budget.min_per_second to 1, or to what one process may add to a callee that is down.";
    MIN_FAILURES_HIGH = "min_failures_high", Hint,
        "The retry breaker's minimum lets through so many failures per window that quiet routes are never bounded.",
        "Lower min_failures or min_samples below the failures that a quiet route has in one window.";
    MAX_RATIO_STOPS_CREDIT = "max_ratio_stops_credit", Hint,
        "A guard's ratio stops every retry above a share of failed attempts at which credit still pays for some.",
        "Raise the guard's max_retry_breaker_ratio, or bound repeats at the callee by its repeat_limit instead.";
    RULE_FOR_EVERYBODY = "rule_for_everybody", Warning,
        "The rule repeats every call of every service to every service, whether they bear it or not.",
        "Name the callee, or leave the rule in observe until its routes have rules of their own.";
    HEDGE_FIXED_DELAY = "hedge_fixed_delay", Warning,
        "Hedges are sent after a fixed time: when the callee slows down all calls are doubled.",
        "Use hedge.delay.percentile, with the fixed time as its min.";
    HEDGE_WITHOUT_BUDGET = "hedge_without_budget", Hint,
        "Hedges are bounded by the retry breaker alone, which counts failures and not load.",
        "Set a budget, so that hedges and retries together stay below a share of the calls.";
    HEDGES_NEAR_BREAKER = "hedges_near_breaker", Warning,
        "Hedges at this percentile alone use up half of the failures that the retry breaker bears.",
        "Raise hedge.delay.percentile.at, or retry_breaker.ratio, and bound both by a budget.";

    // What repeating does to the callee's data.
    NON_IDEMPOTENT_REPEATED = "non_idempotent_repeated", Warning,
        "The method's name says that it changes something, and it is repeated after codes that can follow a success.",
        "Retry only UNAVAILABLE, or set call_id and let the handler recognise repeats by it.";
    NON_IDEMPOTENT_HEDGED = "non_idempotent_hedged", Warning,
        "The method's name says that it changes something, and hedges carry it out twice whenever it is slow.",
        "Leave out hedge, or set call_id and let the handler recognise repeats by it.";
    UNNAMED_REPEATED = "unnamed_repeated", Warning,
        "The rule repeats methods that it does not name after codes that can follow a success.",
        "Retry only UNAVAILABLE there, and give methods that bear more a rule of their own.";
    UNCLEAR_REPEATED = "unclear_repeated", Hint,
        "The rule repeats a method after codes that can follow a success, and its name does not say that it only reads.",
        "Ask the method's owner whether a second run does harm; if it can, retry only UNAVAILABLE.";
    CALL_ID_MISSING = "call_id_missing", Hint,
        "The method's name says that it changes something, and nothing tells its handler that a request is a repeat.",
        "Set call_id and let the handler recognise repeats by it; UNAVAILABLE can follow a success too.";

    // What does not do what it says.
    NEVER_REPEATS = "never_repeats", Warning,
        "The rule has a retry or hedge block and can never send a call twice.",
        "Raise max_attempts, or leave the block out.";
    CODE_NEVER_HELPS = "code_never_helps", Warning,
        "The rule retries codes with which the same request fails again.",
        "Take them out of retry.codes, or add them to its deny list.";
    ATTEMPT_TIMEOUT_NOT_RETRIED = "attempt_timeout_not_retried", Warning,
        "Attempts are given up as DEADLINE_EXCEEDED, which the rule does not retry: a slow call only fails sooner.",
        "Add DEADLINE_EXCEEDED to retry.codes, or use timeout instead.";
    ATTEMPT_TIMEOUT_USELESS = "attempt_timeout_useless", Warning,
        "The time of one attempt is no shorter than the time of the whole call: no attempt follows one that is given up.",
        "Set retry.per_attempt_timeout well below timeout and retry.max_duration.";
    ATTEMPTS_DO_NOT_FIT = "attempts_do_not_fit", Hint,
        "The timeout is over before every attempt could use up its own time.",
        "Shorten retry.per_attempt_timeout, or allow fewer attempts.";
    WAITS_DO_NOT_FIT = "waits_do_not_fit", Warning,
        "The waits alone use up the call's time: the last attempts can never be sent.",
        "Shorten the backoff, allow fewer attempts, or give the call more time.";
    HEDGE_NEVER_SENT = "hedge_never_sent", Warning,
        "The call or the attempt is over before a hedge is due.",
        "Set the hedge's delay well below timeout and retry.per_attempt_timeout.";
    HEDGES_EXCEED_ATTEMPTS = "hedges_exceed_attempts", Warning,
        "There are more hedges than max_attempts leaves room for.",
        "Raise retry.max_attempts, which counts hedges too, or lower hedge.max_hedges.";
    BY_CODE_REPEATED = "by_code_repeated", Warning,
        "A code stands in several entries of by_code, of which only the first applies.",
        "Name each code in one entry.";
    BY_CODE_NOT_RETRIED = "by_code_not_retried", Warning,
        "by_code has waits for a code that the rule does not retry.",
        "Add the code to retry.codes, or take its waits out.";
    REPLAY_LIMIT_ZERO = "replay_limit_zero", Warning,
        "No request is kept, so none can be sent again.",
        "Leave out replay_limit_bytes, or set it to the size of usual requests.";
    HOLD_WITH_HEDGE = "hold_with_hedge", Hint,
        "An answer that is held does not count before its status, so hedges are sent while it is arriving.",
        "Leave out hold_unary or hedge, unless calls commonly fail after their message.";

    // How waits and times meet callers and callees.
    BACKOFF_WITHOUT_JITTER = "backoff_without_jitter", Warning,
        "All callers that failed together wait equally long and come back together.",
        "Set jitter: full.";
    BACKOFF_NONE = "backoff_none", Warning,
        "Several retries follow each other at once, most likely into the same fault.",
        "Use an exponential backoff, or allow two attempts.";
    BACKOFF_IS_CONSTANT = "backoff_is_constant", Warning,
        "A backoff of a kind that varies waits equally long each time: its settings leave it no room.",
        "Give it room, or write it as fixed, with jitter.";
    TIMEOUT_ON_STREAMS = "timeout_on_streams", Warning,
        "The rule is for methods that it does not name and ends long streams among them.",
        "Set times only in rules that name their method, or be sure that there are no streams.";
    NO_DEADLINE = "no_deadline", Hint,
        "Waits can keep a call for long and nothing but the caller's own deadline ends it.",
        "Set timeout or retry.max_duration.";

    // Guards.
    CEILING_LIMITS_NOTHING = "ceiling_limits_nothing", Warning,
        "No rule can go beyond this ceiling.",
        "Lower the ceiling, or leave it out.";
    REPEAT_LIMIT_OFF = "repeat_limit_off", Hint,
        "The repeat limit is off: repeats are neither bounded nor counted against it.",
        "Set repeat_limit.mode to observe, which counts what it would refuse, or leave the limit out.";
    REPEAT_LIMIT_HIGH = "repeat_limit_high", Warning,
        "The callee would serve one repeat for every two first sends or more.",
        "Set repeat_limit.ratio to 0.1 to 0.2.";

    // What a control plane finds beside.
    GUARD_CUTS = "guard_cuts", Warning,
        "A guard allows less than the rule says, and cuts it where both match.",
        "Keep the rule within the guard, or ask the guard's owner.";
    CHAIN_ABOVE_LIMIT = "chain_above_limit", Danger,
        "By the edges seen in reports and the rules in force a chain through the rule's routes can send more than the server's limit.",
        "Allow fewer attempts on its hops, and repair those that multiply instead of adding up.";
    CLIENTS_LACK_FEATURE = "clients_lack_feature", Warning,
        "Connected clients can not carry the rule or guard out, so it is off there.",
        "Update the SDK of these services, or write the rule without the feature.";
    OWNED_BY_ANOTHER = "owned_by_another", Warning,
        "The rule or guard belongs to somebody whom the author of the change does not name.",
        "Tell the owner, or make the change in the set that the owner applies.";
    MORE_FINDINGS = "more_findings", Hint,
        "There are more findings than one answer holds.",
        "Ask for fewer rules at a time.";
}
