//! Writes the tables of what rules and guards can say to standard output, for `cargo xtask docs`:
//! `settings_reference rule|guard`.
//!
//! Ranges and defaults are the engine's own constants; only what a setting means is written here.

use std::fmt::Display;
use std::time::Duration;

use damper_core::fault::Bounds;
use damper_core::policy::{
    BREAKER_RATIO, BUCKET_LENGTH, BUCKETS, BUDGET_MIN_PER_SECOND, BUDGET_RATIO, Budget, CIRCUIT_CALLS,
    CIRCUIT_OPEN_FOR, CIRCUIT_PROBES, CIRCUIT_RATIO, CircuitBreaker, DEFAULT_REPLAY_LIMIT, EARN, HEDGE_DELAY,
    HEDGE_PERCENTILE, Hedge, LATENCY_PERCENTILE, MAX_ATTEMPTS, MAX_HEDGES, MIN_FAILURES, MIN_SAMPLES,
    REPLAY_LIMIT, RETRYABLE, Retry, RetryBreaker, STOP_MIN_SAMPLES, SUCCESS_RATE, StopWhen, TIMEOUT, Waits,
};
use damper_core::{CodeSet, RepeatLimit, breaker, guard, repeat_limit};

/// A field, its default, its range and what it means.
type Row = (&'static str, String, String, &'static str);

fn main() {
    let rows = match std::env::args().nth(1).as_deref() {
        Some("rule") => rule(),
        Some("guard") => guard(),
        _ => panic!("settings_reference rule|guard"),
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
            "`observe` makes every decision on real traffic, repeats and cuts nothing, and counts what it would \
             have done",
        ),
        (
            "timeout",
            none(),
            times(&TIMEOUT),
            "the whole call with its answer, repeats and waits; cuts a running attempt",
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
            "the first send included",
        ),
        (
            "retry.max_duration",
            none(),
            times(&TIMEOUT),
            "from the first send; only stops further attempts: a wait that would reach it is not begun",
        ),
        (
            "retry.per_attempt_timeout",
            none(),
            times(&TIMEOUT),
            "one attempt with its whole answer; then it ends as DEADLINE_EXCEEDED, which is retried only if \
             `codes` says so",
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
            format!("`fixed:` {}, or `percentile:`", times(&HEDGE_DELAY)),
            "how long an answer is waited for before the call is sent once more beside",
        ),
        (
            "hedge.delay.percentile.at",
            required(),
            range(&HEDGE_PERCENTILE),
            "of the attempts in the last complete window of 10 s",
        ),
        ("hedge.delay.percentile.min", time(HEDGE_DELAY.min), times(&HEDGE_DELAY), "never sooner"),
        ("hedge.delay.percentile.max", time(HEDGE_DELAY.max), times(&HEDGE_DELAY), "never later"),
        (
            "hedge.max_hedges",
            Hedge::DEFAULT_MAX_HEDGES.to_string(),
            range(&MAX_HEDGES),
            "per call; counts towards `retry.max_attempts` where that is set",
        ),
    ]
}

fn breaker() -> Vec<Row> {
    let breaker = RetryBreaker::default();
    vec![
        ("retry_breaker.enabled", "true".into(), String::new(), "see [Retry breaker](#retry-breaker)"),
        ("retry_breaker.mode", "`credit`".into(), "`credit`, `ratio`".into(), "what admits a retry"),
        (
            "retry_breaker.earn",
            breaker.earn.to_string(),
            range(&EARN),
            "credit: so much of a retry each first attempt that succeeds pays for",
        ),
        (
            "retry_breaker.ratio",
            breaker.ratio.to_string(),
            range(&BREAKER_RATIO),
            "failures per success up to which retries are free (mode `ratio`) and hedges are sent",
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
            times(&BUCKET_LENGTH),
            "the window is so long times `buckets`",
        ),
        (
            "retry_breaker.min_failures",
            breaker.min_failures.to_string(),
            range(&MIN_FAILURES),
            "mode `ratio`: so many retries are saved for what the ratio does not admit; so many failures never stop hedges",
        ),
        (
            "retry_breaker.min_samples",
            breaker.min_samples.to_string(),
            range(&MIN_SAMPLES),
            "with fewer attempts in the window the ratio says nothing: retries take what is saved, hedges are sent",
        ),
        (
            "retry_breaker.max_ratio",
            none(),
            range(&BREAKER_RATIO),
            "failures per success above which nothing is repeated, in either mode; guards set it",
        ),
        (
            "retry_breaker.failure_codes",
            codes(breaker::FAILURES),
            "a list".into(),
            "what counts as a failure, besides what the rule retries; every other answer shows that the callee \
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
            "so many more whatever the traffic",
        ),
    ]
}

fn stops() -> Vec<Row> {
    vec![
        (
            "stop_when.latency_above_percentile",
            none(),
            range(&LATENCY_PERCENTILE),
            "no retry of a call that has taken longer than this percentile of successful attempts (last 10 to \
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
            "both need so many",
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
            "opens after so many failed calls in a row; see [Circuit breaker](#circuit-breaker)",
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
            "the share needs so many calls in the window",
        ),
        (
            "circuit_breaker.open_for",
            time(circuit.open_for),
            times(&CIRCUIT_OPEN_FOR),
            "how long calls are refused",
        ),
        (
            "circuit_breaker.probes",
            circuit.probes.to_string(),
            range(&CIRCUIT_PROBES),
            "so many calls are let through then; if all succeed it closes",
        ),
        ("circuit_breaker.slow_call", none(), times(&TIMEOUT), "a call that took longer counts as failed"),
    ]
}

fn chain() -> Vec<Row> {
    let no = || "false".to_owned();
    vec![
        (
            "chain.ignore_retry_flag",
            no(),
            String::new(),
            "repeat even where the request served is itself a repeat: attempts multiply along the chain",
        ),
        ("chain.ignore_no_more_retry", no(), String::new(), "repeat even where a hop below has given up"),
        (
            "chain.propagate_baggage",
            no(),
            String::new(),
            "send the flag down as W3C baggage too, so that hops which only speak OpenTelemetry pass it on",
        ),
    ]
}

fn wire() -> Vec<Row> {
    vec![
        (
            "hold_unary",
            "false".into(),
            "needs an exact `callee_method`".into(),
            "hold an answer of one message back until its status is known, so that a call that fails after its \
             message can be repeated",
        ),
        (
            "replay_limit_bytes",
            DEFAULT_REPLAY_LIMIT.to_string(),
            range(&REPLAY_LIMIT),
            "request bytes kept per call so that it can be sent again (and 16 MiB per process); also how long an \
             answer may be that is held",
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
        ("ceiling.max_attempts", none(), range(&MAX_ATTEMPTS), "hedges count"),
        ("ceiling.hedge", "`allow`".into(), "`allow`, `forbid`".into(), ""),
        (
            "ceiling.codes",
            none(),
            "`allow:` or `deny:` a list".into(),
            "only these may be retried; none = no retries",
        ),
        (
            "ceiling.max_retry_breaker_ratio",
            none(),
            range(&BREAKER_RATIO),
            "failures per success above which nothing is repeated; switches on a breaker that is off",
        ),
        ("ceiling.min_per_attempt_timeout", none(), times(&TIMEOUT), "attempts may not be given up sooner"),
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
            "repeats served per first send",
        ),
        (
            "ceiling.repeat_limit.min",
            limit.min.to_string(),
            range(&repeat_limit::MIN),
            "so many are always served",
        ),
        (
            "owner",
            none(),
            format!("at most {} bytes", guard::OWNER_BYTES.max),
            "whom to ask; beside `ceiling`",
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

fn times(bounds: &Bounds<Duration>) -> String {
    format!("{} to {}", time(bounds.min), time(bounds.max))
}

/// `1h`, as it is written in a manifest.
fn time(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

fn codes(codes: CodeSet) -> String {
    codes.iter().map(|code| code.name()).collect::<Vec<_>>().join(", ")
}
