//! Writes the tables of settings of rules, guards and queues to standard output, for `cargo xtask docs`:
//! `settings_reference rule|guard|queue`.
//!
//! Ranges and defaults are the engine's constants; only the meanings are written here.

use std::fmt::Display;
use std::time::Duration;

use damper_core::fault::{Bounds, Millis};
use damper_core::job::{self, QueueSettings};
use damper_core::policy::{
    BREAKER_RATIO, BUCKET_LENGTH, BUCKETS, BUDGET_MIN_PER_SECOND, BUDGET_RATIO, Budget, CIRCUIT_CALLS,
    CIRCUIT_OPEN_FOR, CIRCUIT_PROBES, CIRCUIT_RATIO, CircuitBreaker, DEFAULT_REPLAY_LIMIT, EARN, HEDGE_DELAY,
    HEDGE_PERCENTILE, Hedge, LATENCY_PERCENTILE, MAX_ATTEMPTS, MAX_HEDGES, MIN_FAILURES, MIN_SAMPLES,
    REPLAY_LIMIT, RETRYABLE, Retry, RetryBreaker, STOP_MIN_SAMPLES, SUCCESS_RATE, StopWhen, TIMEOUT, Waits,
};
use damper_core::{CodeSet, Mode, RepeatLimit, breaker, guard, repeat_limit};

/// Field, default, range and meaning.
type Row = (&'static str, String, String, &'static str);

fn main() {
    let rows = match std::env::args().nth(1).as_deref() {
        Some("rule") => rule(),
        Some("guard") => guard(),
        Some("queue") => queue(),
        _ => panic!("settings_reference rule|guard|queue"),
    };
    println!("| field | default | range | meaning |\n|---|---|---|---|");
    for (field, default, range, meaning) in rows {
        println!("| `{field}` | {default} | {range} | {meaning} |");
    }
}

fn rule() -> Vec<Row> {
    [calls(), retries(), hedges(), breaker(), budget(), stops(), circuit(), chain(), wire()].concat()
}

fn calls() -> Vec<Row> {
    vec![
        (
            "mode",
            required(),
            "`off`, `observe`, `enforce`".into(),
            "`observe` makes every decision on real traffic and counts it, without retries and cut calls",
        ),
        (
            "timeout",
            none(),
            range(&TIMEOUT),
            "the whole call with its response, retries and waits; cancels a running attempt",
        ),
    ]
}

fn retries() -> Vec<Row> {
    let retry = Retry::default();
    let backoff = format!(
        "exponential {} x {} up to {}, full jitter",
        time(Waits::DEFAULT_BASE),
        Waits::DEFAULT_MULTIPLIER,
        time(Waits::DEFAULT_MAX)
    );
    vec![
        (
            "retry.max_attempts",
            retry.max_attempts.to_string(),
            range(&MAX_ATTEMPTS),
            "including the first attempt",
        ),
        (
            "retry.max_duration",
            none(),
            range(&TIMEOUT),
            "from the first attempt; only stops further attempts: a wait that reaches it does not start",
        ),
        (
            "retry.per_attempt_timeout",
            none(),
            range(&TIMEOUT),
            "one attempt with its whole response; then it ends as DEADLINE_EXCEEDED, which is retried only if \
             `codes` contains it",
        ),
        (
            "retry.codes",
            format!("allow {}", codes(RETRYABLE)),
            "`allow:` or `deny:` a list".into(),
            "the gRPC codes that may be retried",
        ),
        ("retry.backoff", backoff, "see [Backoff](#backoff)".into(), "the wait before each retry"),
    ]
}

fn hedges() -> Vec<Row> {
    vec![
        (
            "hedge.delay",
            required(),
            format!("`fixed:` {}, or `percentile:`", range(&HEDGE_DELAY)),
            "wait for a response before the next hedge",
        ),
        (
            "hedge.delay.percentile.at",
            required(),
            range(&HEDGE_PERCENTILE),
            "of the attempts in the last complete window of 10 s",
        ),
        ("hedge.delay.percentile.min", time(HEDGE_DELAY.min), range(&HEDGE_DELAY), "never sooner"),
        ("hedge.delay.percentile.max", time(HEDGE_DELAY.max), range(&HEDGE_DELAY), "never later"),
        (
            "hedge.max_hedges",
            Hedge::DEFAULT_MAX_HEDGES.to_string(),
            range(&MAX_HEDGES),
            "per call; counts towards `retry.max_attempts` if that is set",
        ),
    ]
}

fn breaker() -> Vec<Row> {
    let breaker = RetryBreaker::default();
    vec![
        ("retry_breaker.enabled", "true".into(), String::new(), "see [Retry breaker](#retry-breaker)"),
        ("retry_breaker.mode", "`credit`".into(), "`credit`, `ratio`".into(), "condition of a retry"),
        (
            "retry_breaker.earn",
            breaker.earn.to_string(),
            range(&EARN),
            "credit: part of a retry that each successful first attempt earns",
        ),
        (
            "retry_breaker.ratio",
            breaker.ratio.to_string(),
            range(&BREAKER_RATIO),
            "failures per success up to which retries are free (mode `ratio`) and hedges are allowed",
        ),
        (
            "retry_breaker.buckets",
            breaker.window.buckets.to_string(),
            range(&BUCKETS),
            "of the sliding window",
        ),
        (
            "retry_breaker.bucket_length",
            time(breaker.window.bucket_length),
            range(&BUCKET_LENGTH),
            "length of a bucket; the window has `buckets` of them",
        ),
        (
            "retry_breaker.min_failures",
            breaker.min_failures.to_string(),
            range(&MIN_FAILURES),
            "mode `ratio`: retries allowed beyond the ratio; up to this number of failures hedges are always allowed",
        ),
        (
            "retry_breaker.min_samples",
            breaker.min_samples.to_string(),
            range(&MIN_SAMPLES),
            "fewest attempts in the window for the ratio; below, retries use the saved number and hedges are allowed",
        ),
        (
            "retry_breaker.max_ratio",
            none(),
            range(&BREAKER_RATIO),
            "failures per success above which retries and hedges stop, in either mode; guards set it",
        ),
        (
            "retry_breaker.failure_codes",
            codes(breaker::FAILURES),
            "a list".into(),
            "codes that count as failures, in addition to the retryable ones; any other response shows that the callee \
             is alive",
        ),
    ]
}

fn budget() -> Vec<Row> {
    let budget = Budget::default();
    vec![
        (
            "budget.ratio",
            budget.ratio.to_string(),
            range(&BUDGET_RATIO),
            "retries and hedges together, per call started in the window",
        ),
        (
            "budget.min_per_second",
            budget.min_per_second.to_string(),
            range(&BUDGET_MIN_PER_SECOND),
            "added at any traffic",
        ),
    ]
}

fn stops() -> Vec<Row> {
    vec![
        (
            "stop_when.latency_above_percentile",
            none(),
            range(&LATENCY_PERCENTILE),
            "no retry of a call that took longer than this percentile of successful attempts (last 10 to \
             20 s)",
        ),
        (
            "stop_when.success_rate_below",
            none(),
            range(&SUCCESS_RATE),
            "no retry while less than this percentage of the window's attempts succeeded",
        ),
        (
            "stop_when.min_samples",
            StopWhen::default().min_samples.to_string(),
            range(&STOP_MIN_SAMPLES),
            "fewest attempts in the window for both",
        ),
    ]
}

fn circuit() -> Vec<Row> {
    let circuit = CircuitBreaker::default();
    vec![
        (
            "circuit_breaker.consecutive_failures",
            circuit.consecutive_failures.to_string(),
            range(&CIRCUIT_CALLS),
            "opens after this number of failed calls in a row; see [Circuit breaker](#circuit-breaker)",
        ),
        (
            "circuit_breaker.failure_ratio",
            circuit.failure_ratio.to_string(),
            range(&CIRCUIT_RATIO),
            "opens when this share of the window's calls failed",
        ),
        (
            "circuit_breaker.min_calls",
            circuit.min_calls.to_string(),
            range(&CIRCUIT_CALLS),
            "fewest calls in the window for the share",
        ),
        (
            "circuit_breaker.open_for",
            time(circuit.open_for),
            range(&CIRCUIT_OPEN_FOR),
            "time for which calls fail",
        ),
        (
            "circuit_breaker.probes",
            circuit.probes.to_string(),
            range(&CIRCUIT_PROBES),
            "number of calls that pass then; if all succeed it closes",
        ),
        ("circuit_breaker.slow_call", none(), range(&TIMEOUT), "a call that took longer counts as failed"),
    ]
}

fn chain() -> Vec<Row> {
    let no = || "false".to_owned();
    vec![
        (
            "chain.ignore_retry_flag",
            no(),
            String::new(),
            "retry even while serving a retry: attempts multiply along the chain",
        ),
        ("chain.ignore_no_more_retry", no(), String::new(), "retry even if a callee below stopped retrying"),
        (
            "chain.propagate_baggage",
            no(),
            String::new(),
            "send the retry flag as W3C baggage as well, for services that propagate only OpenTelemetry",
        ),
    ]
}

fn wire() -> Vec<Row> {
    vec![
        (
            "hold_unary",
            "false".into(),
            "needs an exact `callee_method`".into(),
            "delay a response of one message until its status is known, so that a failure after the message \
             can be retried",
        ),
        (
            "replay_limit_bytes",
            DEFAULT_REPLAY_LIMIT.to_string(),
            range(&REPLAY_LIMIT),
            "request bytes buffered per call for further attempts (and 16 MiB per process for gRPC); also the longest \
             response that `hold_unary` delays",
        ),
        (
            "call_id",
            "false".into(),
            String::new(),
            "send `damper-call`, 128 random bits in hexadecimal, equal on all attempts of a call",
        ),
    ]
}

fn guard() -> Vec<Row> {
    let limit = RepeatLimit::default();
    vec![
        ("ceiling.max_attempts", none(), range(&MAX_ATTEMPTS), "including hedges"),
        ("ceiling.hedge", "`allow`".into(), "`allow`, `forbid`".into(), ""),
        (
            "ceiling.codes",
            none(),
            "`allow:` or `deny:` a list".into(),
            "only these may be retried; an empty list = no retries",
        ),
        (
            "ceiling.max_retry_breaker_ratio",
            none(),
            range(&BREAKER_RATIO),
            "failures per success above which retries stop; switches on a disabled breaker",
        ),
        (
            "ceiling.min_per_attempt_timeout",
            none(),
            range(&TIMEOUT),
            "shortest allowed timeout of an attempt",
        ),
        (
            "ceiling.repeat_limit.mode",
            "`observe`".into(),
            "`off`, `observe`, `enforce`".into(),
            "needs `\"*\"` as caller and cluster; see [Repeat limit](#repeat-limit)",
        ),
        (
            "ceiling.repeat_limit.ratio",
            limit.ratio.to_string(),
            range(&repeat_limit::RATIO),
            "retries served per first attempt",
        ),
        ("ceiling.repeat_limit.min", limit.min.to_string(), range(&repeat_limit::MIN), "always served"),
        ("owner", none(), format!("at most {} bytes", guard::OWNER_BYTES.max), "contact; next to `ceiling`"),
    ]
}

fn queue() -> Vec<Row> {
    [queue_policy(), queue_access(), queue_deliveries(), queue_bounds()].concat()
}

fn queue_policy() -> Vec<Row> {
    let retry = QueueSettings::default_retry();
    vec![
        ("name", required(), format!("{} of `a-z`, `0-9`, `-`, `.`", job::NAME_BYTES), ""),
        (
            "policy.mode",
            required(),
            "`off`, `observe`, `enforce`".into(),
            "`off`: nothing is submitted or delivered; `observe`: a submission is checked and not stored",
        ),
        (
            "policy.retry.max_attempts",
            retry.max_attempts.to_string(),
            range(&job::MAX_ATTEMPTS),
            "deliveries that were not released",
        ),
        (
            "policy.retry.max_duration",
            none(),
            range(&job::MAX_DURATION),
            "from the submission; no delivery begins after it",
        ),
        (
            "policy.retry.per_attempt_timeout",
            retry.per_attempt_timeout.map_or_else(none, time),
            range(&job::PER_ATTEMPT_TIMEOUT),
            "one delivery",
        ),
        (
            "policy.retry.codes",
            format!("allow {}", codes(retry.codes)),
            "`allow:` or `deny:` a list".into(),
            "failures after which a job is delivered again",
        ),
        (
            "policy.retry.backoff",
            "exponential 1s x 2 up to 1h, equal jitter".into(),
            "see [Backoff](#backoff)".into(),
            "the wait before each further delivery",
        ),
        ("policy.stop_when", none(), "as in a rule".into(), "holds jobs, or ends them: see `on_stop`"),
        ("on_stop", "`hold`".into(), "`hold`, `dead`".into(), "what `stop_when` does to a job"),
    ]
}

fn queue_access() -> Vec<Row> {
    let entries = |what: &str| format!("at most {} of {what}", job::LIST_ENTRIES.max);
    vec![
        (
            "workers",
            "the service that submitted".into(),
            entries("`NAME`, `PREFIX*`"),
            "services that receive jobs",
        ),
        (
            "submitters",
            "`workers`, or each service for itself".into(),
            entries("`NAME`, `PREFIX*`"),
            "services that may submit",
        ),
        (
            "methods",
            "all".into(),
            entries("`CALLEE METHOD`"),
            "routes that may be submitted; each part exact or `*`, a method also `package.Service/*`",
        ),
        (
            "metadata",
            "`traceparent`".into(),
            format!("{} names", job::METADATA_NAMES),
            "request metadata that is kept; none that can carry a credential",
        ),
        ("owner", none(), format!("at most {} bytes", guard::OWNER_BYTES.max), "contact, and owner of sets"),
    ]
}

fn queue_deliveries() -> Vec<Row> {
    let default = QueueSettings::new(Mode::Off);
    vec![
        (
            "max_in_flight",
            default.max_in_flight.to_string(),
            range(&job::MAX_IN_FLIGHT),
            "jobs that are delivered at the same time",
        ),
        ("rate", none(), range(&job::RATE), "deliveries per second, in steps of 0.1"),
        ("lease", time(default.lease), range(&job::LEASE), "longest silence of a worker"),
        (
            "max_lost",
            default.max_lost.to_string(),
            range(&job::MAX_LOST),
            "lost deliveries in a row, then the job is dead",
        ),
        (
            "hold_after",
            default.hold_after.to_string(),
            range(&job::HOLD_AFTER),
            "failures in a row, then jobs of the callee are held, but for one probe per second",
        ),
        (
            "paused",
            none(),
            format!("at most {} bytes", job::PAUSED_BYTES.max),
            "reason why nothing is delivered",
        ),
    ]
}

fn queue_bounds() -> Vec<Row> {
    let default = QueueSettings::new(Mode::Off);
    vec![
        (
            "expires_after",
            time(default.expires_after),
            range(&job::EXPIRES_AFTER),
            "from the submission; a job may set less",
        ),
        ("keep_done", time(default.keep_done), range(&job::KEEP_DONE), "ended jobs, without body"),
        ("keep_dead", time(default.keep_dead), range(&job::KEEP_DEAD), "dead jobs"),
        ("max_jobs", default.max_jobs.to_string(), range(&job::MAX_JOBS), "jobs that have not ended"),
        ("max_bytes", default.max_bytes.to_string(), range(&job::MAX_BYTES), "bytes of all jobs"),
        ("max_body_bytes", default.max_body.to_string(), range(&job::MAX_BODY), "of one job"),
        (
            "max_submitter_share",
            default.max_submitter_share.to_string(),
            range(&job::SUBMITTER_SHARE),
            "of `max_jobs` and `max_bytes` that one submitting service may use",
        ),
    ]
}

fn none() -> String {
    "none".to_owned()
}

fn required() -> String {
    "required".to_owned()
}

fn range<T>(bounds: &Bounds<T>) -> String
where
    Bounds<T>: Display,
{
    bounds.to_string()
}

/// `1h`, as in a manifest.
fn time(duration: Duration) -> String {
    Millis(duration).to_string()
}

fn codes(codes: CodeSet) -> String {
    codes.iter().map(|code| code.name()).collect::<Vec<_>>().join(", ")
}
