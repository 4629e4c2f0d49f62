//! The features of Spring Retry, with the numbers of its documentation.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Fault, bounds, eager, ms, play, waits};
use damper_retry::{
    AttemptEnded, Backoff, CallEnded, CircuitBreaker, Error, Fate, Jitter, Listener, Reason, Retry, Stop,
};
use tokio::time::{advance, sleep};

#[tokio::test(start_paused = true)]
async fn spring_never_retry_policy_makes_one_attempt() {
    let retry = eager().max_attempts(1).retry_all().build().unwrap();
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    assert_eq!(starts.len(), 1);
    assert_eq!(result.unwrap_err().last(), Some(&Fault::Io));
}

#[tokio::test(start_paused = true)]
async fn spring_always_retry_policy_has_no_limit() {
    let retry = eager().stop(Stop::Never).retry_all().build().unwrap();
    let result = retry
        .call(async |attempt| if attempt.number() < 10_000 { Err(Fault::Io) } else { Ok(attempt.number()) })
        .await;
    assert_eq!(result.unwrap(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn spring_simple_retry_policy_makes_three_attempts_by_default() {
    let retry = eager().retry_all().build().unwrap();
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    let Err(Error::Failed(failed)) = result else { panic!("{result:?}") };
    assert_eq!((starts.len(), failed.attempts, failed.ending.fate), (3, 3, Fate::AttemptsExhausted));
}

/// `RetryTemplate.builder().maxAttempts(10).exponentialBackoff(100, 2, 10000).retryOn(IOException.class)`
#[tokio::test(start_paused = true)]
async fn spring_builder_with_exponential_backoff_and_retry_on() {
    let retry = Retry::named("spring")
        .max_attempts(10)
        .backoff(Backoff::exponential(ms(100)).multiplier(2.0).max(ms(10_000)))
        .retry_if(|error: &Fault| *error == Fault::Io)
        .build()
        .unwrap();
    assert_eq!(waits(&retry).await, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Business)]).await;
    assert_eq!((starts.len(), result.unwrap_err().fate()), (1, Some(Fate::NotRetryable)));
}

/// `RetryTemplate.builder().fixedBackoff(10).withinMillis(3000)`
#[tokio::test(start_paused = true)]
async fn spring_timeout_policy_starts_attempts_within_its_limit() {
    let retry = Retry::named("spring")
        .stop(Stop::After(ms(3000)))
        .backoff(Backoff::fixed(ms(10)))
        .budget(None)
        .retry_all()
        .build()
        .unwrap();
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    assert_eq!((starts.len(), starts.last()), (300, Some(&2990)));
    let error = result.unwrap_err();
    assert_eq!((error.fate(), error.elapsed()), (Some(Fate::MaxDuration), ms(2990)), "without a last wait");
}

/// `RetryTemplate.builder().infiniteRetry().retryOn(IOException.class).uniformRandomBackoff(1000, 3000)`
#[tokio::test(start_paused = true)]
async fn spring_infinite_retry_with_uniform_random_backoff() {
    let retry = Retry::named("spring")
        .stop(Stop::Never)
        .backoff(Backoff::random(ms(1000), ms(3000)))
        .retry_if(|error: &Fault| *error == Fault::Io)
        .build()
        .unwrap();
    let outcomes = [vec![Err(Fault::Io); 200], vec![Ok(())]].concat();
    let (starts, result) = play(&retry, &outcomes).await;
    assert_eq!(starts.len(), 201);
    // Timers have a resolution of one millisecond.
    assert!(starts.windows(2).all(|pair| (1000..=3001).contains(&(pair[1] - pair[0]))));
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn spring_composite_policy_pessimistic_ends_with_the_first_policy() {
    let stop = Stop::AfterAttempts(3).or(Stop::After(ms(5000)));
    let retry = eager().stop(stop).backoff(Backoff::fixed(ms(1000))).retry_all().build().unwrap();
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    assert_eq!((starts, result.unwrap_err().fate()), (vec![0, 1000, 2000], Some(Fate::AttemptsExhausted)));
}

#[tokio::test(start_paused = true)]
async fn spring_composite_policy_optimistic_ends_with_the_last_policy() {
    let stop = Stop::AfterAttempts(3).and(Stop::After(ms(5000)));
    let retry = eager().stop(stop).backoff(Backoff::fixed(ms(1000))).retry_all().build().unwrap();
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    assert_eq!(
        (starts, result.unwrap_err().fate()),
        (vec![0, 1000, 2000, 3000, 4000], Some(Fate::MaxDuration))
    );
}

/// `@CircuitBreaker(maxAttempts = 3, resetTimeout = 20000)`. Differs: after the time a probe decides.
#[tokio::test(start_paused = true)]
async fn spring_circuit_breaker_opens_after_three_failed_calls() {
    let breaker = CircuitBreaker {
        consecutive_failures: 3,
        open_for: Duration::from_secs(20),
        probes: 1,
        ..CircuitBreaker::default()
    };
    let retry = eager().max_attempts(1).circuit_breaker(breaker).retry_all().build().unwrap();
    let fail = async || play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    for _ in 0..3 {
        assert_eq!(fail().await.0.len(), 1);
    }
    let (starts, result) = fail().await;
    assert_eq!((starts.len(), result.unwrap_err().fate()), (0, Some(Fate::CircuitOpen)));
    advance(ms(20_001)).await;
    play(&retry, &[Ok::<_, Fault>(())]).await.1.unwrap();
    assert_eq!(fail().await.0.len(), 1, "closed again");
}

#[tokio::test(start_paused = true)]
async fn spring_exception_classifier_policy_counts_each_class() {
    let retry = eager()
        .stop(Stop::Never)
        .limit(5, |error: &Fault| *error == Fault::Io)
        .limit(2, |error: &Fault| *error == Fault::Timeout)
        .build()
        .unwrap();
    for (fault, attempts) in [(Fault::Io, 5), (Fault::Timeout, 2), (Fault::Business, 1)] {
        assert_eq!(play::<(), _, _>(&retry, &[Err(fault)]).await.0.len(), attempts, "{fault:?}");
    }
    let mixed = [Fault::Io, Fault::Timeout, Fault::Io, Fault::Io, Fault::Timeout].map(Err::<(), _>);
    assert_eq!(play(&retry, &mixed).await.0.len(), 5, "the second timeout ends the call");
}

#[test]
fn spring_backoff_policies() {
    assert_eq!(bounds(&Backoff::none(), 2), [(0, 0); 2]);
    assert_eq!(bounds(&Backoff::fixed(ms(1000)), 2), [(1000, 1000); 2], "FixedBackOffPolicy");
    let random = Backoff::random(ms(500), ms(1500));
    assert_eq!(bounds(&random, 2), [(500, 1499); 2], "UniformRandomBackOffPolicy");
    let exponential = Backoff::exponential(ms(50)).max(ms(3000));
    let waits: Vec<_> = bounds(&exponential, 5).into_iter().map(|(least, _)| least).collect();
    assert_eq!(waits, [50, 100, 200, 400, 800], "ExponentialBackOffPolicy");
    // Each wait is multiplied by 1 to 2.
    let random = Backoff::sum([exponential.clone(), exponential.jitter(Jitter::Full)]);
    let expected = [(50, 100), (100, 200), (200, 400), (400, 800), (800, 1600)];
    assert_eq!(bounds(&random, 5), expected, "ExponentialRandomBackOffPolicy");
}

#[tokio::test(start_paused = true)]
async fn spring_recovery_callback_runs_after_the_last_attempt() {
    let retry = eager().retry_if(|error: &Fault| *error == Fault::Io).build().unwrap();
    let recovered = |fault| {
        let retry = &retry;
        async move {
            let (_, result) = play(retry, &[Err::<&str, _>(fault)]).await;
            // One recovery per class of errors.
            result.or_else(|error| match error.last() {
                Some(Fault::Io) => Ok("from the cache"),
                _ => Err(error),
            })
        }
    };
    assert_eq!(recovered(Fault::Io).await.unwrap(), "from the cache");
    assert_eq!(recovered(Fault::Business).await.unwrap_err().into_last(|_| Fault::Io), Fault::Business);
}

#[tokio::test(start_paused = true)]
async fn spring_stateful_retry_returns_each_error_and_then_recovers() {
    let retry = eager().retry_all().build().unwrap().stateful(4096, ms(60_000));
    let ran = Cell::new(0);
    let deliver = async |key: &'static str| {
        retry
            .call(key, async |attempt| {
                ran.set(attempt.number());
                Err::<(), _>(Fault::Io)
            })
            .await
            .unwrap_err()
    };
    for number in 1..=2 {
        let error = deliver("message").await;
        assert_eq!((error.fate(), error.attempts(), ran.get()), (Some(Fate::Retry), number, number));
    }
    let error = deliver("message").await;
    assert_eq!((error.fate(), error.last()), (Some(Fate::AttemptsExhausted), Some(&Fault::Io)));
    ran.set(0);
    let error = deliver("message").await;
    assert_eq!((error.fate(), error.last(), ran.get()), (Some(Fate::AttemptsExhausted), None, 0));
    assert_eq!((error.attempts(), retry.len()), (3, 0), "the key is forgotten");
    assert_eq!(deliver("message").await.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn spring_stateful_retry_without_rollback_retries_within_the_call() {
    let retry = eager().retry_all().build().unwrap();
    let retry = retry.stateful(10, ms(60_000)).rollback_if(|error: &Fault| *error != Fault::Timeout);
    let numbers = |fault| retry.call("key", move |_| async move { Err::<(), _>(fault) });
    assert_eq!(numbers(Fault::Timeout).await.unwrap_err().attempts(), 3);
    let retry = eager().retry_all().build().unwrap();
    let retry = retry.stateful(10, ms(60_000)).rollback_if(|error: &Fault| *error != Fault::Timeout);
    let error = retry.call("key", async |_| Err::<(), _>(Fault::Io)).await.unwrap_err();
    assert_eq!((error.attempts(), error.fate()), (1, Some(Fate::Retry)));
}

/// `RetryCacheCapacityExceededException`
#[tokio::test(start_paused = true)]
async fn spring_stateful_retry_has_a_capacity_and_a_time_to_live() {
    let retry = eager().retry_all().build().unwrap().stateful(2, ms(1000));
    let fail = async |key: u32| retry.call(key, async |_| Err::<(), _>(Fault::Io)).await.unwrap_err();
    fail(1).await;
    fail(2).await;
    let Error::NotAnswered(full) = fail(3).await else { panic!("the store is full") };
    assert_eq!((full.reason, full.attempts), (Reason::StoreFull, 0));
    assert_eq!(fail(1).await.attempts(), 2, "held keys go on");
    advance(ms(500)).await;
    retry.call(2, async |_| Ok::<_, Fault>(())).await.unwrap();
    assert_eq!(retry.len(), 1, "a success forgets the key");
    fail(3).await;
    advance(ms(600)).await;
    assert_eq!(fail(4).await.attempts(), 1, "in the place of an expired key");
    assert_eq!(fail(1).await.fate(), None, "the store is full, and the key has expired");
}

/// `RetryState.isForceRefresh`
#[tokio::test(start_paused = true)]
async fn spring_stateful_retry_can_be_refreshed() {
    let retry = eager().retry_all().build().unwrap().stateful(10, ms(1000));
    retry.call("key", async |_| Err::<(), _>(Fault::Io)).await.unwrap_err();
    let error = retry.call_fresh("key", async |_| Err::<(), _>(Fault::Io)).await.unwrap_err();
    assert_eq!(error.attempts(), 1);
}

#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>, bool);

impl Journal {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }
}

impl<E: std::fmt::Debug> Listener<u32, E> for Journal {
    fn open(&self, name: &str) -> bool {
        self.add(format!("open {name}"));
        !self.1
    }

    fn success(&self, event: &AttemptEnded<'_, u32, E>, value: &u32) {
        self.add(format!("success {} {value}", event.attempt));
    }

    fn error(&self, event: &AttemptEnded<'_, u32, E>, error: &E) {
        self.add(format!("error {} {error:?}", event.attempt));
    }

    fn close(&self, event: &CallEnded<'_>) {
        self.add(format!("close {} {}", event.attempts, event.ending));
    }
}

#[tokio::test(start_paused = true)]
async fn spring_listeners_open_error_success_close() {
    let journal = Journal::default();
    let retry = eager().retry_all().listener(journal.clone()).build().unwrap();
    let (_, result) = play(&retry, &[Err(Fault::Io), Ok(7)]).await;
    assert_eq!(result.unwrap(), 7);
    let expected = ["open test", "error 1 Io", "success 2 7", "close 2 ok_after_retry"];
    assert_eq!(*journal.0.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn spring_listener_forbids_the_call_at_open() {
    let journal = Journal(Arc::default(), true);
    let retry = eager().retry_all().listener(journal.clone()).build().unwrap();
    let (starts, result) = play::<_, Fault, _>(&retry, &[Ok(7)]).await;
    let Err(Error::NotAnswered(not_answered)) = result else { panic!("{result:?}") };
    assert_eq!((starts.len(), not_answered.reason), (0, Reason::NotPermitted));
    assert_eq!(*journal.0.lock().unwrap(), ["open test", "close 0 cancelled"]);
    assert_eq!((retry.stats().cancelled, retry.stats().attempts), (0, 0), "no call began");
}

/// `RetryContext.setExhaustedOnly`
#[tokio::test(start_paused = true)]
async fn spring_attempt_can_exhaust_the_call() {
    let retry = eager().retry_all().build().unwrap();
    let inner = eager().retry_all().build().unwrap();
    let result = retry
        .call(async |attempt| {
            if attempt.number() == 2 {
                attempt.exhaust();
            }
            // An inner call has requests of its own.
            inner
                .call(async |inner| {
                    inner.exhaust();
                    Err::<(), _>(Fault::Io)
                })
                .await
                .unwrap_err();
            sleep(ms(1)).await;
            Err::<(), _>(Fault::Io)
        })
        .await;
    assert_eq!(result.unwrap_err().attempts(), 2);
    assert_eq!((inner.stats().attempts, inner.stats().failed_with_retry), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn spring_statistics_per_name() {
    let retry = eager().retry_all().build().unwrap();
    play(&retry, &[Ok::<_, Fault>(())]).await.1.unwrap();
    play(&retry, &[Err(Fault::Io), Ok(())]).await.1.unwrap();
    play::<(), _, _>(&retry, &[Err(Fault::Io)]).await.1.unwrap_err();
    let stats = retry.stats();
    assert_eq!(retry.name(), "test");
    assert_eq!((stats.succeeded_without_retry, stats.succeeded_with_retry), (1, 1));
    assert_eq!((stats.failed_with_retry, stats.failed_without_retry, stats.attempts), (1, 0, 6));
}

/// `RetryContext`: count, last error and deadline.
#[tokio::test(start_paused = true)]
async fn spring_context_of_an_attempt() {
    let retry = eager().backoff(Backoff::fixed(ms(100))).attempt_timeout(ms(50)).retry_all().build().unwrap();
    let seen = Mutex::new(Vec::new());
    let began = tokio::time::Instant::now();
    let result = retry
        .call(async |attempt| {
            let left = attempt.deadline().map(|deadline| deadline - began);
            seen.lock().unwrap().push((attempt.number(), attempt.is_retry(), attempt.elapsed(), left));
            assert!(!attempt.is_hedge());
            assert_eq!(attempt.last_code().is_some(), attempt.is_retry());
            Err::<(), _>(Fault::Io)
        })
        .await;
    result.unwrap_err();
    let expected = [
        (1, false, ms(0), Some(ms(50))),
        (2, true, ms(100), Some(ms(150))),
        (3, true, ms(200), Some(ms(250))),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}
