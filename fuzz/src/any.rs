//! Any policy, guard or table that the engine accepts, made of the fuzzer's bytes.
//!
//! Values are taken from within the engine's own bounds; most are short waits and small numbers, with the ends
//! of each range forced in.

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use damper_core::fault::Bounds;
use damper_core::policy::{
    BREAKER_RATIO, BUCKET_LENGTH, BUCKETS, BUDGET_MIN_PER_SECOND, BUDGET_RATIO, CIRCUIT_CALLS,
    CIRCUIT_OPEN_FOR, CIRCUIT_PROBES, CIRCUIT_RATIO, EARN, HEDGE_DELAY, HEDGE_PERCENTILE, JITTER_SHARE,
    LATENCY_PERCENTILE, MAX_ATTEMPTS, MAX_HEDGES, MIN_FAILURES, MIN_SAMPLES, MULTIPLIER, REPLAY_LIMIT, STEP,
    STOP_MIN_SAMPLES, SUCCESS_RATE, TIMEOUT, WAIT,
};
use damper_core::{
    Backoff, BackoffStep, BreakerMode, Budget, Ceiling, Chain, CircuitBreaker, Code, CodeSet, Growth, Guard,
    Hedge, HedgeDelay, Jitter, Kill, Mode, OverMax, Pattern, Percent, Policy, Ratio, RepeatLimit, Retry,
    RetryBreaker, Rule, StopWhen, Waits, WindowShape, repeat_limit,
};

/// Shorter than this is short: most durations are.
const SHORT_US: u64 = 40_000;

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn duration(u: &mut Unstructured<'_>, Bounds { min, max }: Bounds<Duration>) -> Result<Duration> {
    let (least, most) = (us(min), us(max));
    let between = |u: &mut Unstructured<'_>, most| u.int_in_range(least..=most).map(Duration::from_micros);
    match u.int_in_range(0..=9)? {
        0 => Ok(min),
        1 => Ok(max),
        2 => between(u, most),
        _ => between(u, most.min(least + SHORT_US)),
    }
}

/// Two durations, the lesser first.
fn durations(u: &mut Unstructured<'_>, bounds: Bounds<Duration>) -> Result<(Duration, Duration)> {
    let (a, b) = (duration(u, bounds)?, duration(u, bounds)?);
    Ok((a.min(b), a.max(b)))
}

fn number(u: &mut Unstructured<'_>, Bounds { min, max }: Bounds<u32>) -> Result<u32> {
    match u.int_in_range(0..=4)? {
        0 => Ok(min),
        1 => Ok(max),
        2 => u.int_in_range(min..=max),
        _ => u.int_in_range(min..=max.min(min + 5)),
    }
}

fn ratio(u: &mut Unstructured<'_>, Bounds { min, max }: Bounds<Ratio>) -> Result<Ratio> {
    Ok(Ratio::from_bp(match u.int_in_range(0..=3)? {
        0 => min.bp(),
        1 => max.bp(),
        _ => u.int_in_range(min.bp()..=max.bp())?,
    }))
}

fn percent(u: &mut Unstructured<'_>, Bounds { min, max }: Bounds<Percent>) -> Result<Percent> {
    u.int_in_range(min.hundredths()..=max.hundredths()).map(Percent::from_hundredths)
}

fn maybe<T>(
    u: &mut Unstructured<'_>,
    make: impl FnOnce(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Option<T>> {
    Ok(if u.arbitrary()? { Some(make(u)?) } else { None })
}

/// Any code but OK.
fn code(u: &mut Unstructured<'_>) -> Result<Code> {
    Ok(*u.choose(&Code::ALL[1..])?)
}

fn codes(u: &mut Unstructured<'_>) -> Result<CodeSet> {
    match u.int_in_range(0..=3)? {
        0 => Ok(CodeSet::all_but(CodeSet::EMPTY)),
        1 => Ok(CodeSet::all_but(CodeSet::of(&[code(u)?, code(u)?]))),
        _ => Ok(CodeSet::of(&[code(u)?, code(u)?, Code::Unavailable])),
    }
}

fn mode(u: &mut Unstructured<'_>) -> Result<Mode> {
    Ok(match u.int_in_range(0..=9)? {
        0 => Mode::Off,
        1 | 2 => Mode::Observe,
        _ => Mode::Enforce,
    })
}

fn jitter(u: &mut Unstructured<'_>, in_sum: bool) -> Result<Jitter> {
    Ok(match u.int_in_range(0..=4)? {
        0 => Jitter::None,
        1 => Jitter::Full,
        2 => Jitter::Equal,
        // In a sum no wait may depend on the one before.
        3 if !in_sum => Jitter::Decorrelated,
        _ => Jitter::PlusMinus(ratio(u, JITTER_SHARE)?),
    })
}

fn first_and_growth(u: &mut Unstructured<'_>, in_sum: bool) -> Result<(Duration, Growth)> {
    let (first, max) = durations(u, WAIT)?;
    let over_max = *u.choose(&[OverMax::Cap, OverMax::Stop])?;
    Ok((first, Growth { max, over_max, jitter: jitter(u, in_sum)? }))
}

fn waits(u: &mut Unstructured<'_>, in_sum: bool) -> Result<Waits> {
    Ok(match u.int_in_range(0..=6)? {
        0 => Waits::None,
        1 => Waits::Fixed { delay: duration(u, WAIT)?, jitter: jitter(u, in_sum)? },
        2 => {
            let (min, max) = durations(u, WAIT)?;
            Waits::Random { min, max, jitter: jitter(u, in_sum)? }
        }
        3 => {
            let (initial, growth) = first_and_growth(u, in_sum)?;
            let size = duration(u, STEP)?;
            let down = u.arbitrary()? && !size.is_zero();
            let step = if down { BackoffStep::Down(size) } else { BackoffStep::Up(size) };
            Waits::Incrementing { initial, step, growth }
        }
        4 => {
            let (base, growth) = first_and_growth(u, in_sum)?;
            Waits::Exponential { base, multiplier: ratio(u, MULTIPLIER)?, growth }
        }
        5 => {
            let (unit, growth) = first_and_growth(u, in_sum)?;
            Waits::Fibonacci { unit, growth }
        }
        _ => {
            let count = u.int_in_range(1..=5)?;
            let delays = (0..count).map(|_| duration(u, WAIT)).collect::<Result<_>>()?;
            Waits::Custom { delays, jitter: jitter(u, in_sum)? }
        }
    })
}

fn backoff(u: &mut Unstructured<'_>) -> Result<Backoff> {
    Ok(match u.int_in_range(0..=5)? {
        0 => {
            let count = u.int_in_range(1..=3)?;
            Backoff::Sum((0..count).map(|_| waits(u, true)).collect::<Result<_>>()?)
        }
        1 => {
            let default = waits(u, false)?;
            let count = u.int_in_range(1..=3)?;
            let codes = (0..count).map(|_| Ok((codes(u)?, waits(u, false)?))).collect::<Result<_>>()?;
            Backoff::ByCode { default, codes }
        }
        _ => Backoff::Always(waits(u, false)?),
    })
}

fn retry(u: &mut Unstructured<'_>) -> Result<Retry> {
    Ok(Retry {
        max_attempts: number(u, MAX_ATTEMPTS)?,
        max_duration: maybe(u, |u| duration(u, TIMEOUT))?,
        per_attempt_timeout: maybe(u, |u| duration(u, TIMEOUT))?,
        codes: codes(u)?,
        backoff: backoff(u)?,
    })
}

fn hedge(u: &mut Unstructured<'_>) -> Result<Hedge> {
    let delay = if u.ratio(1, 3)? {
        let (min, max) = durations(u, HEDGE_DELAY)?;
        HedgeDelay::Percentile { at: percent(u, HEDGE_PERCENTILE)?, min, max }
    } else {
        HedgeDelay::Fixed(duration(u, HEDGE_DELAY)?)
    };
    Ok(Hedge { delay, max_hedges: number(u, MAX_HEDGES)? })
}

fn retry_breaker(u: &mut Unstructured<'_>) -> Result<RetryBreaker> {
    Ok(RetryBreaker {
        mode: *u.choose(&[BreakerMode::Credit, BreakerMode::Ratio])?,
        earn: ratio(u, EARN)?,
        ratio: ratio(u, BREAKER_RATIO)?,
        max_ratio: maybe(u, |u| ratio(u, BREAKER_RATIO))?,
        window: WindowShape { buckets: number(u, BUCKETS)?, bucket_length: duration(u, BUCKET_LENGTH)? },
        min_failures: number(u, MIN_FAILURES)?,
        min_samples: number(u, MIN_SAMPLES)?,
        failure_codes: maybe(u, codes)?,
    })
}

fn stop_when(u: &mut Unstructured<'_>) -> Result<StopWhen> {
    let latency_above_percentile = maybe(u, |u| percent(u, LATENCY_PERCENTILE))?;
    let rate = percent(u, SUCCESS_RATE)?;
    let says_rate = latency_above_percentile.is_none() || u.arbitrary()?;
    Ok(StopWhen {
        latency_above_percentile,
        success_rate_below: Some(rate).filter(|_| says_rate),
        min_samples: number(u, STOP_MIN_SAMPLES)?,
    })
}

fn circuit_breaker(u: &mut Unstructured<'_>) -> Result<CircuitBreaker> {
    Ok(CircuitBreaker {
        consecutive_failures: number(u, CIRCUIT_CALLS)?,
        failure_ratio: ratio(u, CIRCUIT_RATIO)?,
        min_calls: number(u, CIRCUIT_CALLS)?,
        open_for: duration(u, CIRCUIT_OPEN_FOR)?,
        probes: number(u, CIRCUIT_PROBES)?,
        slow_call: maybe(u, |u| duration(u, TIMEOUT))?,
    })
}

/// Any policy for an exact method.
pub(crate) fn policy(u: &mut Unstructured<'_>) -> Result<Policy> {
    let [ignore_retry_flag, ignore_no_more_retry, propagate_baggage, hold_unary, call_id] = u.arbitrary()?;
    Ok(Policy {
        mode: mode(u)?,
        timeout: maybe(u, |u| duration(u, TIMEOUT))?,
        retry: maybe(u, retry)?,
        hedge: maybe(u, hedge)?,
        retry_breaker: maybe(u, retry_breaker)?,
        budget: maybe(u, |u| {
            Ok(Budget { ratio: ratio(u, BUDGET_RATIO)?, min_per_second: number(u, BUDGET_MIN_PER_SECOND)? })
        })?,
        stop_when: maybe(u, stop_when)?,
        circuit_breaker: maybe(u, circuit_breaker)?,
        chain: Chain { ignore_retry_flag, ignore_no_more_retry, propagate_baggage },
        replay_limit: number(u, REPLAY_LIMIT)?,
        hold_unary,
        call_id,
    })
}

/// A rule with any policy; the method is exact.
pub(crate) fn rule(u: &mut Unstructured<'_>, callee: &str, method: &str) -> Result<Rule> {
    let pattern = Pattern::parse("*", "*", callee, method).expect("the names are constants");
    Ok(Rule::new(pattern, policy(u)?, 1).expect("made within the bounds"))
}

/// A guard of any ceilings for all callers of a callee.
pub(crate) fn guard(u: &mut Unstructured<'_>, callee: &str) -> Result<Guard> {
    let method = *u.choose(&["*", "a.B/*", "a.B/C"])?;
    let repeat_limit = maybe(u, |u| {
        Ok(RepeatLimit {
            mode: mode(u)?,
            ratio: ratio(u, repeat_limit::RATIO)?,
            min: number(u, repeat_limit::MIN)?,
        })
    })?;
    let ceiling = Ceiling {
        max_attempts: maybe(u, |u| number(u, MAX_ATTEMPTS))?,
        forbid_hedge: u.arbitrary()?,
        codes: maybe(u, |u| if u.arbitrary()? { Ok(CodeSet::EMPTY) } else { codes(u) })?,
        max_retry_breaker_ratio: maybe(u, |u| ratio(u, BREAKER_RATIO))?,
        min_per_attempt_timeout: maybe(u, |u| duration(u, TIMEOUT))?,
        repeat_limit,
    };
    let limits_nothing = ceiling == Ceiling::default();
    let ceiling = if limits_nothing { Ceiling { forbid_hedge: true, ..ceiling } } else { ceiling };
    let pattern = Pattern::parse("*", "*", callee, method).expect("the names are constants");
    Ok(Guard::new(pattern, ceiling, "owner".to_owned(), 1).expect("made within the bounds"))
}

/// A kill that may match the method.
pub(crate) fn kill(u: &mut Unstructured<'_>, callee: &str, method: &str) -> Result<Kill> {
    let callee = *u.choose(&["*", callee])?;
    let method = *u.choose(&["*", "a.B/*", method, "a.B/Other"])?;
    let pattern = Pattern::parse("*", "*", callee, method).expect("the names are constants");
    let reason = "x".repeat(u.int_in_range(1..=40)?);
    Ok(Kill::new(pattern, u.arbitrary()?, reason, u.int_in_range(0..=9)?).expect("the reason is short"))
}

/// A table of some rules and guards.
pub(crate) fn table(u: &mut Unstructured<'_>, callee: &str, method: &str) -> Result<damper_core::Table> {
    let mut table = damper_core::Table::from_iter([Arc::new(rule(u, callee, method)?)]);
    for _ in 0..u.int_in_range(0..=2)? {
        table.insert_guard(Arc::new(guard(u, callee)?));
    }
    Ok(table)
}
