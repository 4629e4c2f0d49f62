//! The features of Guava Retrying, with the numbers of its README and its Javadoc.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use common::{Fault, bounds, eager, ms, play, waits};
use damper_retry::{AttemptEnded, Backoff, Error, Fate, Listener, Retry, Stop};

/// `retryIfResult(isNull()).retryIfExceptionOfType(IOException.class).retryIfRuntimeException()
/// .withStopStrategy(stopAfterAttempt(3))`
#[tokio::test(start_paused = true)]
async fn guava_quick_start() {
    let retry = eager()
        .retry_if_value(|value: &Option<bool>| value.is_none())
        .retry_if(|error: &Fault| *error == Fault::Io)
        .retry_if(|error: &Fault| *error == Fault::Timeout)
        .max_attempts(3)
        .build()
        .unwrap();
    let (starts, result) = play(&retry, &[Err(Fault::Io), Ok(None), Ok(Some(true))]).await;
    assert_eq!((starts.len(), result.unwrap()), (3, Some(true)));
    let (starts, result) = play(&retry, &[Err(Fault::Timeout), Err(Fault::Business)]).await;
    assert_eq!((starts.len(), result.unwrap_err().last()), (2, Some(&Fault::Business)));
}

/// Guava throws a `RetryException` for a value that is rejected to the end.
#[tokio::test(start_paused = true)]
async fn guava_value_rejected_to_the_end() {
    let rejects = |value: &Option<bool>| value.is_none();
    let retry = eager().retry_all().retry_if_value(rejects).fail_on_value().build().unwrap();
    let (starts, result) = play::<_, Fault, _>(&retry, &[Ok(None)]).await;
    let error = result.unwrap_err();
    assert_eq!((starts.len(), error.fate(), error.last()), (3, Some(Fate::AttemptsExhausted), None));
}

#[tokio::test(start_paused = true)]
async fn guava_stop_strategies() {
    let fixed = || eager().backoff(Backoff::fixed(ms(300)));
    let retry = fixed().stop(Stop::AfterAttempts(3)).retry_all().build().unwrap();
    assert_eq!(waits(&retry).await.len(), 2);
    let retry = fixed().stop(Stop::After(ms(1000))).retry_all().build().unwrap();
    let (starts, _) = play::<(), _, _>(&retry, &[Err(Fault::Io)]).await;
    assert_eq!(starts, [0, 300, 600, 900]);
    let retry = fixed().stop(Stop::Never).retry_all().build().unwrap();
    let outcomes = [vec![Err(Fault::Io); 500], vec![Ok(())]].concat();
    assert_eq!(play(&retry, &outcomes).await.0.len(), 501);
}

#[test]
fn guava_wait_strategies() {
    let least =
        |backoff: &Backoff| -> Vec<_> { bounds(backoff, 6).into_iter().map(|(least, _)| least).collect() };
    assert_eq!(least(&Backoff::fixed(ms(1000))), [1000; 6]);
    assert_eq!(bounds(&Backoff::random(ms(1000), ms(2000)), 1), [(1000, 1999)]);
    let incrementing = Backoff::incrementing(ms(500), ms(100));
    assert_eq!(least(&incrementing), [500, 600, 700, 800, 900, 1000]);
    let decrementing = Backoff::decrementing(ms(500), ms(100));
    assert_eq!(least(&decrementing), [500, 400, 300, 200, 100, 0]);
    // Guava's exponential waits begin with the double of the multiplier.
    assert_eq!(least(&Backoff::exponential(ms(2))), [2, 4, 8, 16, 32, 64]);
    assert_eq!(least(&Backoff::exponential(ms(2)).max(ms(40))), [2, 4, 8, 16, 32, 40]);
    assert_eq!(least(&Backoff::fibonacci(ms(1))), [1, 1, 2, 3, 5, 8]);
    assert_eq!(least(&Backoff::fibonacci(ms(10)).max(ms(45))), [10, 10, 20, 30, 45, 45]);
    let joined = Backoff::sum([Backoff::fixed(ms(50)), Backoff::fibonacci(ms(10))]);
    assert_eq!(least(&joined), [60, 60, 70, 80, 100, 130]);
}

/// `exponentialWait(100, 5, MINUTES)` and `fibonacciWait(100, 2, MINUTES)` of the README.
#[tokio::test(start_paused = true)]
async fn guava_exponential_and_fibonacci_waits_of_the_readme() {
    let forever = || eager().max_attempts(15).retry_all();
    let retry = forever().backoff(Backoff::exponential(ms(200)).max(ms(300_000))).build().unwrap();
    let waits_of_retry = waits(&retry).await;
    assert_eq!(waits_of_retry[..4], [200, 400, 800, 1600]);
    assert_eq!(waits_of_retry[10..], [204_800, 300_000, 300_000, 300_000]);
    let retry = forever().backoff(Backoff::fibonacci(ms(100)).max(ms(120_000))).build().unwrap();
    assert_eq!(waits(&retry).await[..7], [100, 100, 200, 300, 500, 800, 1300]);
}

/// `exceptionWait(IOException.class, ...)`
#[tokio::test(start_paused = true)]
async fn guava_wait_by_error() {
    let retry = eager()
        .backoff(Backoff::fixed(ms(10)))
        .retry_all()
        .wait_by(|attempt, outcome: Result<&(), &Fault>| {
            (outcome == Err(&Fault::Timeout)).then(|| ms(1000) * attempt)
        })
        .build()
        .unwrap();
    let outcomes = [Err(Fault::Io), Err(Fault::Timeout), Ok(())];
    assert_eq!(play(&retry, &outcomes).await.0, [0, 10, 2010]);
}

/// `withAttemptTimeLimiter(fixedTimeLimit(2, SECONDS))`
#[tokio::test(start_paused = true)]
async fn guava_limit_of_an_attempt() {
    let retry = eager().attempt_timeout(ms(2000)).retry_all().build().unwrap();
    let began = tokio::time::Instant::now();
    let result = retry
        .call(async |attempt| {
            if attempt.number() < 3 {
                tokio::time::sleep(ms(10_000)).await;
            }
            Ok::<_, Fault>(began.elapsed())
        })
        .await;
    assert_eq!(result.unwrap(), ms(4000));
    let error = retry.call(async |_| std::future::pending::<Result<(), Fault>>().await).await.unwrap_err();
    assert_eq!((error.attempts(), error.fate(), error.last()), (3, Some(Fate::AttemptsExhausted), None));
}

#[derive(Clone, Default)]
struct Attempts(Arc<Mutex<Vec<(u32, bool)>>>);

impl<T, E> Listener<T, E> for Attempts {
    fn attempt(&self, event: &AttemptEnded<'_, T, E>) {
        self.0.lock().unwrap().push((event.attempt, event.is_success));
    }
}

#[tokio::test(start_paused = true)]
async fn guava_listener_after_every_attempt() {
    let attempts = Attempts::default();
    let retry = eager().retry_all().listener(attempts.clone()).build().unwrap();
    play(&retry, &[Err(Fault::Io), Ok(())]).await.1.unwrap();
    assert_eq!(*attempts.0.lock().unwrap(), [(1, false), (2, true)]);
}

/// `RetryException.getLastFailedAttempt`
#[tokio::test(start_paused = true)]
async fn guava_final_error_has_the_last_failed_attempt() {
    let retry = Retry::named("guava").retry_all().build().unwrap();
    let calls = AtomicU32::new(0);
    let result = retry.call(async |_| Err::<(), _>(calls.fetch_add(1, Ordering::Relaxed))).await;
    let Err(Error::Failed(failed)) = result else { panic!("{result:?}") };
    assert_eq!((failed.last, failed.attempts), (2, 3));
}
