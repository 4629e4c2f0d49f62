//! The features of Reactor's `Retry`, `CompletableFuture` and Failsafe, with the numbers of their
//! documentation.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::cell::RefCell;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Fault, bounds, eager, ms, play, waits};
use damper_retry::{Backoff, Error, Fate, Reason, Retry};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// `Retry.backoff(3, ofMillis(100)).jitter(0)`: three retries, so four attempts.
#[tokio::test(start_paused = true)]
async fn reactor_backoff_doubles_from_the_minimum() {
    let backoff = Backoff::exponential(ms(100)).jitter_share(0.0);
    let retry = Retry::named("reactor").max_attempts(4).backoff(backoff).retry_all().build().unwrap();
    assert_eq!(waits(&retry).await, [100, 200, 400]);
}

/// `Retry.backoff(n, min).maxBackoff(..).jitter(0.75)`. Differs: jitter goes below the minimum.
#[test]
fn reactor_jitter_is_a_share_of_the_wait() {
    let backoff = Backoff::exponential(ms(100)).max(ms(400)).jitter_share(0.75);
    assert_eq!(bounds(&backoff, 4), [(25, 175), (50, 350), (100, 400), (100, 400)]);
}

/// `doBeforeRetryAsync`
#[tokio::test(start_paused = true)]
async fn reactor_hook_before_each_retry_is_awaited() {
    let hooks = Arc::new(Mutex::new(Vec::new()));
    let retry = eager()
        .backoff(Backoff::fixed(ms(100)))
        .retry_all()
        .before_retry({
            let hooks = Arc::clone(&hooks);
            move |attempt, error: &Fault| {
                let (hooks, error) = (Arc::clone(&hooks), *error);
                async move {
                    sleep(if attempt == 1 { ms(30) } else { ms(250) }).await;
                    hooks.lock().unwrap().push((attempt, error));
                }
            }
        })
        .build()
        .unwrap();
    let (starts, result) = play::<(), _, _>(&retry, &[Err(Fault::Io), Err(Fault::Timeout), Ok(())]).await;
    result.unwrap();
    assert_eq!(starts, [0, 100, 350], "within the wait, and beyond it");
    assert_eq!(*hooks.lock().unwrap(), [(1, Fault::Io), (2, Fault::Timeout)]);
}

#[tokio::test(start_paused = true)]
async fn reactor_hooks_run_in_their_order() {
    let hooks = Arc::new(Mutex::new(Vec::new()));
    let hook = |number: u32| {
        let hooks = Arc::clone(&hooks);
        move |attempt, _: &Fault| {
            let hooks = Arc::clone(&hooks);
            async move {
                sleep(ms(30)).await;
                hooks.lock().unwrap().push((number, attempt));
            }
        }
    };
    let retry = eager().max_attempts(2).retry_all().before_retry(hook(1)).before_retry(hook(2));
    let (starts, _) = play::<(), _, _>(&retry.build().unwrap(), &[Err(Fault::Io)]).await;
    assert_eq!((starts, hooks.lock().unwrap().clone()), (vec![0, 60], vec![(1, 1), (2, 1)]));
}

#[tokio::test(start_paused = true)]
async fn reactor_hook_is_cut_at_the_limit_of_the_call() {
    let retry = || eager().timeout(ms(500)).retry_all().before_retry(|_, _: &Fault| pending::<()>());
    let began = Instant::now();
    let (_, result) = play::<(), _, _>(&retry().build().unwrap(), &[Err(Fault::Io)]).await;
    assert_eq!((result.unwrap_err().fate(), began.elapsed()), (Some(Fate::Deadline), ms(500)));
    let result = retry().build().unwrap().call_mut(async |_| Err::<(), _>(Fault::Io)).await;
    assert_eq!((result.unwrap_err().fate(), began.elapsed()), (Some(Fate::Deadline), ms(1000)));
}

/// Adds one to the count while it is running, and to the other when it is dropped.
struct Running(Arc<(AtomicU32, AtomicU32)>);

impl Running {
    fn new(counts: &Arc<(AtomicU32, AtomicU32)>) -> Self {
        counts.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn counts(counts: &Arc<(AtomicU32, AtomicU32)>) -> (u32, u32) {
    (counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn reactor_dropping_the_future_cancels_the_running_attempt() {
    let (retry, attempts) = (eager().retry_all().build().unwrap(), Arc::default());
    let body = async |_| {
        let _running = Running::new(&attempts);
        pending::<Result<(), Fault>>().await
    };
    timeout(ms(100), retry.call(body)).await.unwrap_err();
    assert_eq!(counts(&attempts), (1, 1));
    timeout(ms(100), retry.call_mut(body)).await.unwrap_err();
    assert_eq!(counts(&attempts), (2, 2));
    let stats = retry.stats();
    assert_eq!((stats.cancelled, stats.attempts, stats.failed_without_retry), (2, 2, 0));
    drop(retry.call(body));
    assert_eq!(retry.stats().attempts, 2, "a call begins when it is polled");
}

#[tokio::test(start_paused = true)]
async fn reactor_dropping_a_waiting_call_counts_it_once() {
    let retry = eager().backoff(Backoff::fixed(ms(1000))).retry_all().build().unwrap();
    timeout(ms(100), play::<(), _, _>(&retry, &[Err(Fault::Io)])).await.unwrap_err();
    assert_eq!((retry.stats().cancelled, retry.stats().attempts), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn reactor_cancellation_token_ends_the_call() {
    let (retry, attempts) = (eager().retry_all().build().unwrap(), Arc::default());
    let mut events = retry.events();
    let (cancel, cancelled) = oneshot::channel::<()>();
    let stop = async {
        _ = cancelled.await;
    };
    let call = retry.call_until(stop, async |_| {
        let _running = Running::new(&attempts);
        pending::<Result<(), Fault>>().await
    });
    let (result, ()) = tokio::join!(call, async {
        sleep(ms(40)).await;
        cancel.send(()).unwrap();
    });
    let Err(Error::NotAnswered(not_answered)) = result else { panic!("{result:?}") };
    assert_eq!((not_answered.reason, not_answered.attempts), (Reason::Cancelled, 1));
    assert_eq!((not_answered.elapsed, counts(&attempts)), (ms(40), (1, 1)));
    assert_eq!(retry.stats().cancelled, 1);
    events.try_recv().unwrap();
}

/// `Retry.max(2).transientErrors(true)`: a burst of errors has its own count.
#[tokio::test(start_paused = true)]
async fn reactor_transient_errors_restart_the_count_after_progress() {
    let backoff = Backoff::exponential(ms(100));
    let retry = eager().max_attempts(3).backoff(backoff).retry_all().build().unwrap();
    let (errors, began, starts) = (RefCell::new(0), Instant::now(), RefCell::new(Vec::new()));
    let result = retry
        .call(async |attempt| {
            starts.borrow_mut().push(began.elapsed().as_millis());
            // Every second attempt receives an item before the stream breaks.
            if attempt.number() == 7 {
                return Ok(());
            }
            if attempt.number() % 2 == 0 {
                attempt.progress();
            }
            *errors.borrow_mut() += 1;
            Err(Fault::Io)
        })
        .await;
    result.unwrap();
    assert_eq!(errors.into_inner(), 6, "with at most two retries in a row");
    assert_eq!(starts.into_inner(), [0, 100, 200, 400, 500, 700, 800]);
}

/// `CompletableFuture.orTimeout`, Failsafe's `Timeout` around a `RetryPolicy`.
#[tokio::test(start_paused = true)]
async fn completable_future_limit_of_the_whole_call() {
    let retry = eager().timeout(ms(1000)).backoff(Backoff::fixed(ms(300))).retry_all().build().unwrap();
    let began = Instant::now();
    let result = retry
        .call(async |_| {
            sleep(ms(400)).await;
            Err::<(), _>(Fault::Io)
        })
        .await;
    let Err(Error::NotAnswered(not_answered)) = result else { panic!("{result:?}") };
    assert_eq!((not_answered.fate(), not_answered.attempts), (Some(Fate::Deadline), 2));
    assert_eq!(began.elapsed(), ms(1000), "in the second attempt");
}

/// `exceptionally`, and Failsafe's `Fallback`.
#[tokio::test(start_paused = true)]
async fn failsafe_fallbacks() {
    let retry = eager().retry_all().build().unwrap();
    let value = play(&retry, &[Err(Fault::Io)]).await.1.unwrap_or(7);
    assert_eq!(value, 7);
    let value = retry.call_or(async |_| Err::<u32, _>(Fault::Io), |_| Fault::Timeout).await;
    assert_eq!(value, Err(Fault::Io));
    let retry = eager().timeout(ms(10)).retry_all().build().unwrap();
    let value = retry.call_or(async |_| pending::<Result<u32, Fault>>().await, |_| Fault::Timeout).await;
    assert_eq!(value, Err(Fault::Timeout));
}

/// `withBackoff(1, 30, SECONDS)`, `withMaxDuration`, `abortOn`, `handleResult(null)`
#[tokio::test(start_paused = true)]
async fn failsafe_retry_policy_of_the_documentation() {
    let second = Duration::from_secs(1);
    let retry = Retry::named("failsafe")
        .max_attempts(8)
        .max_duration(second * 300)
        .backoff(Backoff::exponential(second).max(second * 30))
        .retry_all()
        .retry_if_value(|value: &Option<()>| value.is_none())
        .never_if(|error: &Fault| *error == Fault::Business)
        .build()
        .unwrap();
    let (starts, _) = play::<_, Fault, _>(&retry, &[Ok(None)]).await;
    assert_eq!(starts, [0, 1000, 3000, 7000, 15_000, 31_000, 61_000, 91_000]);
    assert_eq!(play(&retry, &[Ok(None), Err(Fault::Business)]).await.0.len(), 2);
    retry.update(|settings| settings.max_duration(second * 60)).unwrap();
    let (starts, result) = play::<_, Fault, _>(&retry, &[Err(Fault::Io)]).await;
    assert_eq!((starts.len(), result.unwrap_err().fate()), (6, Some(Fate::MaxDuration)));
}
