//! Everything that the engine accepts, with the ends of each range forced in.

use std::time::Duration;

use damper_core::job::{self, OnStop, Queue, QueueSettings, ServiceName, Submittable};
use damper_core::policy::{
    BREAKER_RATIO, BUCKET_LENGTH, BUCKETS, BUDGET_MIN_PER_SECOND, BUDGET_RATIO, CIRCUIT_CALLS,
    CIRCUIT_OPEN_FOR, CIRCUIT_PROBES, CIRCUIT_RATIO, EARN, HEDGE_DELAY, HEDGE_PERCENTILE, JITTER_SHARE,
    LATENCY_PERCENTILE, MAX_ATTEMPTS, MAX_HEDGES, MIN_FAILURES, MIN_SAMPLES, MULTIPLIER, REPLAY_LIMIT, STEP,
    STOP_MIN_SAMPLES, SUCCESS_RATE, TIMEOUT, WAIT,
};
use damper_core::{
    Backoff, BackoffStep, BreakerMode, Budget, Ceiling, Chain, CircuitBreaker, Code, CodeSet, Faults, Growth,
    Guard, Hedge, HedgeDelay, Jitter, Mode, OverMax, Pattern, Percent, Policy, Ratio, RepeatLimit, Retry,
    RetryBreaker, StopWhen, Waits, WindowShape, fault::Bounds, repeat_limit,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

fn duration(bounds: Bounds<Duration>) -> impl Strategy<Value = Duration> {
    let us = |d: Duration| u64::try_from(d.as_micros()).unwrap();
    prop_oneof![
        Just(bounds.min),
        Just(bounds.max),
        (us(bounds.min)..=us(bounds.max)).prop_map(Duration::from_micros)
    ]
}

/// Two durations, the lesser first.
fn durations(bounds: Bounds<Duration>) -> impl Strategy<Value = (Duration, Duration)> {
    (duration(bounds), duration(bounds)).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn number(Bounds { min, max }: Bounds<u32>) -> impl Strategy<Value = u32> {
    prop_oneof![Just(min), Just(max), min..=max]
}

fn ratio(Bounds { min, max }: Bounds<Ratio>) -> impl Strategy<Value = Ratio> {
    number(Bounds { min: min.bp(), max: max.bp() }).prop_map(Ratio::from_bp)
}

fn percent(Bounds { min, max }: Bounds<Percent>) -> impl Strategy<Value = Percent> {
    number(Bounds { min: min.hundredths(), max: max.hundredths() }).prop_map(Percent::from_hundredths)
}

fn codes(least: usize) -> impl Strategy<Value = CodeSet> {
    vec(select(&Code::ALL[1..]), least..17).prop_map(|codes| codes.into_iter().collect())
}

fn mode() -> impl Strategy<Value = Mode> {
    select(vec![Mode::Off, Mode::Observe, Mode::Enforce])
}

fn jitter() -> BoxedStrategy<Jitter> {
    prop_oneof![
        Just(Jitter::None),
        Just(Jitter::Full),
        Just(Jitter::Equal),
        Just(Jitter::Decorrelated),
        ratio(JITTER_SHARE).prop_map(Jitter::PlusMinus),
    ]
    .boxed()
}

/// In a sum no wait may depend on the one before.
fn jitter_in_sum() -> impl Strategy<Value = Jitter> {
    jitter().prop_filter("depends on the wait before", |jitter| *jitter != Jitter::Decorrelated)
}

fn step() -> impl Strategy<Value = BackoffStep> {
    (any::<bool>(), duration(STEP)).prop_map(|(down, size)| match size {
        // There is one 0 on the wire.
        size if down && !size.is_zero() => BackoffStep::Down(size),
        size => BackoffStep::Up(size),
    })
}

fn waits<J: Strategy<Value = Jitter> + 'static>(jitter: impl Fn() -> J) -> BoxedStrategy<Waits> {
    let first_and_growth = || {
        (durations(WAIT), select(vec![OverMax::Cap, OverMax::Stop]), jitter())
            .prop_map(|((first, max), over_max, jitter)| (first, Growth { max, over_max, jitter }))
    };
    prop_oneof![
        Just(Waits::None),
        (duration(WAIT), jitter()).prop_map(|(delay, jitter)| Waits::Fixed { delay, jitter }),
        (durations(WAIT), jitter()).prop_map(|((min, max), jitter)| Waits::Random { min, max, jitter }),
        (first_and_growth(), step()).prop_map(|((initial, growth), step)| Waits::Incrementing {
            initial,
            step,
            growth
        }),
        (first_and_growth(), ratio(MULTIPLIER)).prop_map(|((base, growth), multiplier)| Waits::Exponential {
            base,
            multiplier,
            growth
        }),
        first_and_growth().prop_map(|(unit, growth)| Waits::Fibonacci { unit, growth }),
        (vec(duration(WAIT), 1..=32), jitter()).prop_map(|(delays, jitter)| Waits::Custom { delays, jitter }),
    ]
    .boxed()
}

fn backoff() -> BoxedStrategy<Backoff> {
    prop_oneof![
        3 => waits(jitter).prop_map(Backoff::Always),
        1 => vec(waits(jitter_in_sum), 1..=4).prop_map(Backoff::Sum),
        1 => (waits(jitter), vec((codes(1), waits(jitter)), 1..=4))
            .prop_map(|(default, codes)| Backoff::ByCode { default, codes }),
    ]
    .boxed()
}

fn retry() -> BoxedStrategy<Retry> {
    retry_with(MAX_ATTEMPTS, TIMEOUT, of(duration(TIMEOUT)))
}

fn retry_with(
    attempts: Bounds<u32>,
    longest: Bounds<Duration>,
    timeout: impl Strategy<Value = Option<Duration>> + 'static,
) -> BoxedStrategy<Retry> {
    (number(attempts), of(duration(longest)), timeout, codes(1), backoff())
        .prop_map(|(max_attempts, max_duration, per_attempt_timeout, codes, backoff)| Retry {
            max_attempts,
            max_duration,
            per_attempt_timeout,
            codes,
            backoff,
        })
        .boxed()
}

fn hedge() -> BoxedStrategy<Hedge> {
    let delay = prop_oneof![
        duration(HEDGE_DELAY).prop_map(HedgeDelay::Fixed),
        (percent(HEDGE_PERCENTILE), durations(HEDGE_DELAY))
            .prop_map(|(at, (min, max))| HedgeDelay::Percentile { at, min, max }),
    ];
    (delay, number(MAX_HEDGES)).prop_map(|(delay, max_hedges)| Hedge { delay, max_hedges }).boxed()
}

fn retry_breaker() -> BoxedStrategy<RetryBreaker> {
    (
        select(vec![BreakerMode::Credit, BreakerMode::Ratio]),
        (ratio(EARN), ratio(BREAKER_RATIO), of(ratio(BREAKER_RATIO))),
        (number(BUCKETS), duration(BUCKET_LENGTH)),
        number(MIN_FAILURES),
        number(MIN_SAMPLES),
        of(codes(1)),
    )
        .prop_map(
            |(
                mode,
                (earn, ratio, max_ratio),
                (buckets, bucket_length),
                min_failures,
                min_samples,
                failure_codes,
            )| {
                let window = WindowShape { buckets, bucket_length };
                RetryBreaker {
                    mode,
                    earn,
                    ratio,
                    max_ratio,
                    window,
                    min_failures,
                    min_samples,
                    failure_codes,
                }
            },
        )
        .boxed()
}

fn budget() -> BoxedStrategy<Budget> {
    (ratio(BUDGET_RATIO), number(BUDGET_MIN_PER_SECOND))
        .prop_map(|(ratio, min_per_second)| Budget { ratio, min_per_second })
        .boxed()
}

fn stop_when() -> BoxedStrategy<StopWhen> {
    (of(percent(LATENCY_PERCENTILE)), of(percent(SUCCESS_RATE)), number(STOP_MIN_SAMPLES))
        .prop_filter("says nothing", |(latency, rate, _)| latency.is_some() || rate.is_some())
        .prop_map(|(latency_above_percentile, success_rate_below, min_samples)| StopWhen {
            latency_above_percentile,
            success_rate_below,
            min_samples,
        })
        .boxed()
}

fn circuit_breaker() -> BoxedStrategy<CircuitBreaker> {
    (
        number(CIRCUIT_CALLS),
        ratio(CIRCUIT_RATIO),
        number(CIRCUIT_CALLS),
        duration(CIRCUIT_OPEN_FOR),
        number(CIRCUIT_PROBES),
        of(duration(TIMEOUT)),
    )
        .prop_map(|(consecutive_failures, failure_ratio, min_calls, open_for, probes, slow_call)| {
            CircuitBreaker { consecutive_failures, failure_ratio, min_calls, open_for, probes, slow_call }
        })
        .boxed()
}

/// Every kind of policy that the engine accepts, for an exact method.
pub(crate) fn any_policy() -> impl Strategy<Value = Policy> {
    let gates = (of(retry_breaker()), of(budget()), of(stop_when()), of(circuit_breaker()));
    let flags = any::<[bool; 5]>();
    (mode(), of(duration(TIMEOUT)), of(retry()), of(hedge()), gates, flags, number(REPLAY_LIMIT)).prop_map(
        |(mode, timeout, retry, hedge, gates, flags, replay_limit)| {
            let (retry_breaker, budget, stop_when, circuit_breaker) = gates;
            let [ignore_retry_flag, ignore_no_more_retry, propagate_baggage, hold_unary, call_id] = flags;
            let chain = Chain { ignore_retry_flag, ignore_no_more_retry, propagate_baggage };
            Policy {
                mode,
                timeout,
                retry,
                hedge,
                retry_breaker,
                budget,
                stop_when,
                circuit_breaker,
                chain,
                replay_limit,
                hold_unary,
                call_id,
            }
        },
    )
}

fn repeat_limit_settings() -> BoxedStrategy<RepeatLimit> {
    (mode(), ratio(repeat_limit::RATIO), number(repeat_limit::MIN))
        .prop_map(|(mode, ratio, min)| RepeatLimit { mode, ratio, min })
        .boxed()
}

/// Every kind of guard that the engine accepts.
pub(crate) fn any_guard() -> impl Strategy<Value = Guard> {
    let ceiling = (
        of(number(MAX_ATTEMPTS)),
        any::<bool>(),
        of(codes(0)),
        of(ratio(BREAKER_RATIO)),
        of(duration(TIMEOUT)),
        of(repeat_limit_settings()),
    );
    let ceiling =
        ceiling.prop_map(|(max_attempts, forbid_hedge, codes, ratio, timeout, repeat_limit)| Ceiling {
            max_attempts,
            forbid_hedge,
            codes,
            max_retry_breaker_ratio: ratio,
            min_per_attempt_timeout: timeout,
            repeat_limit,
        });
    let ceiling = ceiling.prop_filter("limits nothing", |ceiling| *ceiling != Ceiling::default());
    let method = select(vec!["*", "stock.v1.Stock/*", "stock.v1.Stock/Take"]);
    (ceiling, method, "[a-z -]{0,12}", any::<u64>()).prop_map(|(ceiling, method, owner, revision)| {
        let pattern = Pattern::parse("*", "*", "stock", method).unwrap();
        Guard::new(pattern, ceiling, owner, revision).unwrap()
    })
}

fn service_names() -> impl Strategy<Value = Vec<ServiceName>> {
    let name =
        prop_oneof!["[a-z-]{1,8}".prop_map(ServiceName::Exact), "[a-z-]{0,8}".prop_map(ServiceName::Prefix)];
    vec(name, 0..4)
}

fn submittable() -> impl Strategy<Value = Submittable> {
    let text = select(vec!["* *", "stock *", "stock stock.v1.Stock/*", "* stock.v1.Stock/Take"]);
    text.prop_map(|text| Submittable::parse("", text, &mut Faults::none()).unwrap())
}

/// A policy of a queue: a timeout of attempts is always set.
fn queue_policy() -> impl Strategy<Value = Policy> {
    let timeout = duration(job::PER_ATTEMPT_TIMEOUT).prop_map(Some);
    let retry = retry_with(job::MAX_ATTEMPTS, job::MAX_DURATION, timeout);
    (mode(), retry, of(stop_when())).prop_map(|(mode, retry, stop_when)| Policy {
        retry: Some(retry),
        stop_when,
        ..QueueSettings::new(mode).policy
    })
}

/// Every kind of queue that the engine accepts.
pub(crate) fn any_queue() -> impl Strategy<Value = Queue> {
    let tenths = Bounds { min: job::RATE.min.bp() / 1000, max: job::RATE.max.bp() / 1000 };
    let rate = of(number(tenths).prop_map(|tenths| Ratio::from_bp(tenths * 1000)));
    let bytes = prop_oneof![
        Just(job::MAX_BYTES.min),
        Just(job::MAX_BYTES.max),
        job::MAX_BYTES.min..=job::MAX_BYTES.max
    ];
    let names = (service_names(), service_names(), vec(submittable(), 0..4));
    let counts = (number(job::MAX_IN_FLIGHT), number(job::MAX_LOST), number(job::HOLD_AFTER), rate);
    let times = (
        duration(job::EXPIRES_AFTER),
        duration(job::LEASE),
        duration(job::KEEP_DONE),
        duration(job::KEEP_DEAD),
    );
    let sizes = (number(job::MAX_JOBS), bytes, number(job::MAX_BODY), ratio(job::SUBMITTER_SHARE));
    let texts = (vec("[a-z][a-z0-9_.-]{0,9}", 1..4), "[a-z -]{0,12}", "[a-z0-9.-]{1,64}", "[a-z -]{0,12}");
    let on_stop = select(vec![OnStop::Hold, OnStop::Dead]);
    let all = (queue_policy(), names, counts, times, sizes, texts, on_stop, any::<u64>());
    all.prop_map(|(policy, names, counts, times, sizes, texts, on_stop, revision)| {
        let (workers, submitters, methods) = names;
        let (max_in_flight, max_lost, hold_after, rate) = counts;
        let (expires_after, lease, keep_done, keep_dead) = times;
        let (max_jobs, max_bytes, max_body, max_submitter_share) = sizes;
        let (metadata, paused, name, owner) = texts;
        // A slow delivery is no reason to hold the others.
        let is_by_latency =
            policy.stop_when.as_ref().is_some_and(|stop_when| stop_when.latency_above_percentile.is_some());
        let on_stop = if is_by_latency { OnStop::Dead } else { on_stop };
        let metadata = metadata.into_iter().map(|name| format!("x{name}").replace("-bin", "-txt")).collect();
        let settings = QueueSettings {
            policy,
            workers,
            submitters,
            methods,
            max_in_flight,
            rate,
            expires_after,
            lease,
            max_lost,
            hold_after,
            on_stop,
            keep_done,
            keep_dead,
            max_jobs,
            max_bytes,
            max_body,
            max_submitter_share,
            metadata,
            paused,
        };
        Queue::new(name, settings, owner, revision).unwrap()
    })
}
