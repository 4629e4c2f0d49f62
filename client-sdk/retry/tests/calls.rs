//! Calls at their edges: hedges, panics, other executors, gates, borrowed and spawned bodies.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use common::{Fault, eager, ms, play};
use damper_retry::{
    Backoff, BoxRetry, BoxStateful, Budget, Error, Fate, Handlers, Hedge, HedgeDelay, Mode, Policy, Ratio,
    Retry, RetryBreaker, Stateful, Stop,
};
use tokio::sync::Notify;
use tokio::time::{Instant, advance, sleep, timeout};

fn hedged() -> Retry<impl damper_retry::Handlers<u32, Fault> + Clone> {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(100)), max_hedges: 1 };
    eager().max_attempts(2).hedge(hedge).retry_all().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn hedge_wins_and_the_slow_attempt_is_dropped() {
    let (retry, began) = (hedged(), Instant::now());
    let slow = async |attempt: damper_retry::Attempt| {
        assert_eq!(attempt.is_hedge(), attempt.number() == 2);
        if attempt.is_hedge() { Ok(2) } else { pending().await }
    };
    assert_eq!(retry.call_hedged(slow).await.unwrap(), 2);
    assert_eq!((began.elapsed(), retry.stats().succeeded_with_retry), (ms(100), 1));
    assert!(timeout(ms(1000), retry.call(slow)).await.is_err(), "a plain call does not hedge");
    assert!(timeout(ms(1000), retry.call_mut(slow)).await.is_err(), "nor does one with a mutable body");
}

#[tokio::test(start_paused = true)]
async fn hedge_that_ends_together_with_the_first_attempt_is_noticed() {
    let (retry, both) = (hedged(), Notify::new());
    let call = retry.call_hedged(async |attempt| {
        both.notified().await;
        if attempt.is_hedge() { Ok(2) } else { Err(Fault::Io) }
    });
    let (result, ()) = tokio::join!(call, async {
        sleep(ms(150)).await;
        both.notify_waiters();
    });
    assert_eq!(result.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_hedge_leaves_the_first_attempt() {
    let retry = hedged();
    let result = retry
        .call_hedged(async |attempt| {
            sleep(if attempt.is_hedge() { ms(10) } else { ms(500) }).await;
            if attempt.is_hedge() { Err(Fault::Io) } else { Ok(1) }
        })
        .await;
    assert_eq!(result.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_body_ends_the_call_once_and_leaves_the_handle_usable() {
    let retry = eager().retry_all().build().unwrap();
    let panicking = tokio::spawn({
        let retry = retry.clone();
        async move {
            retry
                .call(async |attempt| {
                    attempt.exhaust();
                    assert!(attempt.number() == 0, "a bug");
                    Ok::<_, Fault>(())
                })
                .await
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!(retry.stats().cancelled, 1);
    assert_eq!(play::<(), _, _>(&retry, &[Err(Fault::Io)]).await.0.len(), 3, "`exhaust` was of the other");
    let blocking = || retry.call_blocking(|_| -> Result<(), Fault> { panic!("a bug") });
    catch_unwind(AssertUnwindSafe(blocking)).unwrap_err();
    assert_eq!(retry.stats().cancelled, 2);
}

#[tokio::test(start_paused = true)]
async fn stateful_key_counts_dropped_attempts() {
    let retry = eager().retry_all().build().unwrap().stateful(10, ms(60_000));
    for _ in 0..3 {
        timeout(ms(10), retry.call("poison", async |_| pending::<Result<(), Fault>>().await))
            .await
            .unwrap_err();
    }
    let error = retry.call("poison", async |_| -> Result<(), Fault> { unreachable!() }).await.unwrap_err();
    assert_eq!((error.fate(), error.attempts()), (Some(Fate::AttemptsExhausted), 3));
    assert!(retry.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stateful_calls_of_one_key_at_the_same_time_count_both() {
    let retry = eager().retry_all().build().unwrap().stateful(10, ms(60_000));
    let fail = || {
        retry.call("key", async |attempt| {
            sleep(ms(10)).await;
            assert!(attempt.number() <= 3);
            Err::<(), _>(Fault::Io)
        })
    };
    let (first, second) = tokio::join!(fail(), fail());
    assert_eq!((first.unwrap_err().attempts(), second.unwrap_err().attempts()), (1, 2));
    assert_eq!(fail().await.unwrap_err().attempts(), 3);
    assert_eq!(fail().await.unwrap_err().last(), None);
}

#[tokio::test(start_paused = true)]
async fn stateful_attempt_that_times_out_is_returned() {
    let retry = eager().attempt_timeout(ms(10)).retry_all().build().unwrap().stateful(10, ms(60_000));
    let error = retry.call("key", async |_| pending::<Result<(), Fault>>().await).await.unwrap_err();
    assert_eq!((error.fate(), error.attempts()), (Some(Fate::Retry), 1));
}

#[tokio::test(start_paused = true)]
async fn stateful_key_outlives_a_gate_that_blocks_it() {
    let budget = Budget { ratio: Ratio::from_bp(100), min_per_second: 0 };
    let retry = eager().budget(budget).retry_all().build().unwrap();
    let stateful = retry.clone().stateful(10, ms(60_000));
    let fail = async || stateful.call("key", async |_| Err::<(), _>(Fault::Io)).await.unwrap_err();
    let error = fail().await;
    assert_eq!((error.fate(), error.last(), error.attempts()), (Some(Fate::Budget), Some(&Fault::Io), 1));
    let error = fail().await;
    assert_eq!((error.fate(), error.last(), error.attempts()), (Some(Fate::Budget), None, 1), "blocked");
    for _ in 0..200 {
        play(&retry, &[Ok::<_, Fault>(())]).await.1.unwrap();
    }
    let error = fail().await;
    assert_eq!((error.last(), error.attempts()), (Some(&Fault::Io), 2), "the gate is open again");
}

#[tokio::test(start_paused = true)]
async fn stateful_limit_of_time_covers_all_calls_of_a_key() {
    let retry = eager().stop(Stop::After(ms(5000))).retry_all().build().unwrap().stateful(10, ms(60_000));
    let fail = async || retry.call("key", async |_| Err::<(), _>(Fault::Io)).await.unwrap_err();
    assert_eq!(fail().await.fate(), Some(Fate::Retry));
    advance(ms(5000)).await;
    let error = fail().await;
    assert_eq!((error.fate(), error.last(), error.elapsed()), (Some(Fate::MaxDuration), None, ms(5000)));
}

/// Returns the number of the attempt that ran, and the error.
async fn deliver<P: Handlers<(), Fault>>(
    stateful: &Stateful<&'static str, Fault, P>,
    outcome: Option<Fault>,
) -> (u32, Error<Fault>) {
    let ran = Cell::new(0);
    let result = stateful
        .call("key", async |attempt| {
            ran.set(attempt.number());
            match outcome {
                Some(fault) => Err::<(), _>(fault),
                None => pending().await,
            }
        })
        .await;
    (ran.get(), result.unwrap_err())
}

#[tokio::test(start_paused = true)]
async fn stateful_key_goes_on_after_a_deadline_of_a_call() {
    let retry = eager().timeout(ms(10)).retry_all().build().unwrap().stateful(10, ms(60_000));
    for number in 1..=3 {
        let (ran, error) = deliver(&retry, None).await;
        assert_eq!((ran, error.fate(), error.is_recovery()), (number, Some(Fate::Deadline), false));
    }
    let (ran, error) = deliver(&retry, None).await;
    assert_eq!((ran, error.fate(), error.is_recovery()), (0, Some(Fate::AttemptsExhausted), true));
}

#[tokio::test(start_paused = true)]
async fn stateful_key_goes_on_after_a_long_pushback() {
    let hint = |_: &Fault| Some(ms(3_600_000));
    let retry = eager().retry_all().wait_hint(hint).build().unwrap().stateful(10, ms(60_000));
    for number in 1..=3 {
        let (ran, error) = deliver(&retry, Some(Fault::Io)).await;
        assert_eq!((ran, error.fate(), error.is_recovery()), (number, Some(Fate::Pushback), false));
    }
    let (ran, error) = deliver(&retry, Some(Fault::Io)).await;
    assert_eq!((ran, error.fate(), error.is_recovery()), (0, Some(Fate::AttemptsExhausted), true));
}

#[tokio::test(start_paused = true)]
async fn stateful_key_of_an_observed_policy_runs_each_time() {
    let policy = Policy { retry: Some(damper_core::Retry::default()), ..Policy::new(Mode::Observe) };
    let retry = eager().policy(policy).retry_if(|error: &Fault| *error == Fault::Io).build().unwrap();
    for fault in [Fault::Io, Fault::Business] {
        let stateful = retry.clone().stateful(10, ms(60_000));
        for number in 1..=6 {
            let (ran, error) = deliver(&stateful, Some(fault)).await;
            assert_eq!((ran, error.is_recovery()), (number, false), "{error:?}");
            assert!(error.ending().unwrap().would);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stateful_recovery_is_recognised_whatever_its_fate() {
    let not_retried = eager().retry_if(|_: &Fault| false).build().unwrap().stateful(10, ms(60_000));
    let too_old = eager().max_duration(ms(5000)).retry_all().build().unwrap().stateful(10, ms(60_000));
    let (ran, error) = deliver(&not_retried, Some(Fault::Io)).await;
    assert_eq!((ran, error.fate(), error.is_recovery()), (1, Some(Fate::NotRetryable), false));
    let (ran, error) = deliver(&not_retried, Some(Fault::Io)).await;
    assert_eq!((ran, error.fate(), error.is_recovery()), (0, Some(Fate::NotRetryable), true));
    assert!(!deliver(&too_old, Some(Fault::Io)).await.1.is_recovery());
    advance(ms(5000)).await;
    let (ran, error) = deliver(&too_old, Some(Fault::Io)).await;
    assert_eq!((ran, error.fate(), error.is_recovery()), (0, Some(Fate::MaxDuration), true));
    let Error::NotAnswered(not_answered) = error else { panic!("{error:?}") };
    assert_eq!(not_answered.to_string(), "no attempt is left: max_duration (1 attempt in 5.0s)");
    assert_eq!((not_retried.len(), too_old.len()), (0, 0), "the keys are forgotten");
}

#[tokio::test(start_paused = true)]
async fn stateful_attempt_in_flight_keeps_its_key() {
    let retry = eager().retry_all().build().unwrap().stateful(1, ms(1000));
    let fail = async |key: u32, ms_| {
        retry
            .call(key, async |attempt| {
                sleep(ms(ms_)).await;
                Err::<(), _>(if attempt.number() == 1 { Fault::Io } else { Fault::Timeout })
            })
            .await
            .unwrap_err()
    };
    fail(1, 0).await;
    advance(ms(900)).await;
    let (second, other) = tokio::join!(fail(1, 500), async {
        sleep(ms(300)).await;
        fail(2, 0).await
    });
    assert_eq!((second.attempts(), other.fate()), (2, None), "the store is full");
    assert_eq!(fail(1, 0).await.attempts(), 3);
}

#[tokio::test(start_paused = true)]
async fn default_budget_admits_a_hundred_retries_and_a_fifth_of_the_calls() {
    let retry = Retry::named("default").backoff(Backoff::none()).stop(Stop::Never).retry_all();
    let error = play::<(), _, _>(&retry.build().unwrap(), &[Err(Fault::Io)]).await.1.unwrap_err();
    assert_eq!((error.fate(), error.attempts()), (Some(Fate::Budget), 101));
}

#[tokio::test(start_paused = true)]
async fn retry_breaker_admits_retries_after_successes_only() {
    let breaker = RetryBreaker::default();
    let retry = eager().stop(Stop::Never).retry_breaker(breaker).retry_all().build().unwrap();
    let error = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await.1.unwrap_err();
    assert_eq!((error.fate(), error.attempts()), (Some(Fate::RetryBreaker), 1), "without credit");
    for _ in 0..100 {
        play(&retry, &[Ok::<_, Fault>(())]).await.1.unwrap();
    }
    assert_eq!(play(&retry, &[Err(Fault::Io), Ok(())]).await.1.unwrap(), ());
}

#[tokio::test(start_paused = true)]
async fn observed_policy_retries_nothing() {
    let retry =
        eager().policy(Policy { retry: Some(damper_core::Retry::default()), ..Policy::new(Mode::Observe) });
    let error = play::<(), _, _>(&retry.retry_all().build().unwrap(), &[Err(Fault::Io)]).await.1.unwrap_err();
    assert_eq!(error.attempts(), 1);
    assert!(matches!(error, Error::Failed(failed) if failed.ending.would));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on this thread, without tokio.
fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn call_outside_a_tokio_runtime_has_a_timer() {
    let retry = eager().backoff(Backoff::fixed(ms(5))).attempt_timeout(ms(5)).retry_all().build().unwrap();
    let error =
        block_on(retry.call(
            async |attempt| {
                if attempt.number() == 2 { Err::<(), _>(Fault::Io) } else { pending().await }
            },
        ));
    assert_eq!(error.unwrap_err().attempts(), 3);
    let began = std::time::Instant::now();
    _ = block_on(retry.call_mut(async |_| Err::<(), _>(Fault::Io)));
    assert!(began.elapsed() >= ms(10));
}

#[tokio::test(start_paused = true)]
async fn future_of_a_call_can_be_spawned() {
    let retry = eager().retry_all().build().unwrap();
    let mut left = vec![1, 2];
    let owned = tokio::spawn({
        let retry = retry.clone();
        async move { retry.call_mut(async move |_| left.pop().map_or(Ok(()), |_| Err(Fault::Io))).await }
    });
    owned.await.unwrap().unwrap();
    let by_function = tokio::spawn({
        let retry = retry.clone();
        async move {
            retry
                .call(|_| async {
                    sleep(ms(1)).await;
                    Ok::<_, Fault>(1)
                })
                .await
        }
    });
    assert_eq!(by_function.await.unwrap().unwrap(), 1);
    let once = tokio::spawn(damper_retry::retry(|_| async { Ok::<_, Fault>(2) }).retry_all().into_future());
    assert_eq!(once.await.unwrap().unwrap(), 2);
    let stateful = Arc::new(retry.stateful(10, ms(1000)));
    let call = async move { stateful.call(1, |_| async { Ok::<_, Fault>(3) }).await };
    assert_eq!(tokio::spawn(call).await.unwrap().unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn body_borrows_and_changes_what_it_captures() {
    let retry = eager().retry_all().build().unwrap();
    let (url, mut connection) = (String::from("url"), Vec::new());
    let length = retry.call(async |_| Ok::<_, Fault>(url.len())).await.unwrap();
    let result = retry
        .call_mut(async |attempt| {
            connection.push(attempt.number());
            sleep(ms(1)).await;
            if connection.len() < 2 { Err(Fault::Io) } else { Ok(connection.len() + url.len()) }
        })
        .await;
    assert_eq!((length, result.unwrap(), connection), (3, 5, vec![1, 2]));
}

/// A client that keeps its handle.
struct Client {
    fetch: BoxRetry<usize, Fault>,
}

#[tokio::test(start_paused = true)]
async fn boxed_handle_is_kept_in_a_struct() {
    let retry = eager().retry_if(|error: &Fault| *error == Fault::Io).retry_if_value(|value| *value == 0);
    let client = Client { fetch: retry.build().unwrap().boxed() };
    let (starts, result) = play(&client.fetch, &[Err(Fault::Io), Ok(0), Ok(7)]).await;
    assert_eq!((starts.len(), result.unwrap()), (3, 7));
    assert_eq!(play(&client.fetch.clone(), &[Err(Fault::Business)]).await.0.len(), 1);
}

/// A consumer of a queue that keeps its stateful retry.
struct Consumer {
    consume: BoxStateful<u64, (), Fault>,
}

#[tokio::test(start_paused = true)]
async fn boxed_stateful_retry_is_kept_in_a_struct() {
    let retry = eager().retry_if(|error: &Fault| *error == Fault::Io).build().unwrap();
    let consumer = Consumer { consume: retry.boxed().stateful(10, ms(60_000)) };
    let error = consumer.consume.call(7, async |_| Err(Fault::Io)).await.unwrap_err();
    assert_eq!(error.fate(), Some(Fate::Retry));
}

/// The time limits of a call do not depend on when its future is first polled.
#[tokio::test(start_paused = true)]
async fn call_begins_at_its_first_poll() {
    let retry = eager().timeout(ms(100)).retry_all().build().unwrap();
    let mut call = pin!(retry.call(async |attempt| Ok::<_, Fault>(attempt.elapsed())));
    sleep(ms(500)).await;
    let elapsed = poll_fn(|cx| call.as_mut().poll(cx)).await;
    assert_eq!(elapsed.unwrap(), ms(0));
}

#[test]
fn waiting_call_is_small() {
    let retry = eager().retry_all().build().unwrap();
    let call = retry.call(async |_| Ok::<_, Fault>(()));
    assert!(size_of_val(&call) <= 1024, "{} bytes", size_of_val(&call));
}
