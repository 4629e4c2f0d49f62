//! What hand-written loops, tenacity and backon do.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::error::Error as _;
use std::io;
use std::thread;
use std::time::Duration;

use common::{Fault, eager, ms, play};
use damper_retry::{Backoff, Class, Code, Error, Fate, Retryable, Stop, retry};

#[test]
fn loops_blocking_calls_need_no_runtime() {
    let retry = eager().retry_all().backoff(Backoff::fixed(ms(1))).build().unwrap();
    let mut numbers = Vec::new();
    let result = retry.call_blocking(|attempt| {
        numbers.push(attempt.number());
        if numbers.len() < 3 { Err(Fault::Io) } else { Ok(7) }
    });
    assert_eq!((result.unwrap(), numbers), (7, vec![1, 2, 3]));
    let result = retry.call_blocking(|_| Err::<(), _>(Fault::Io));
    assert_eq!((result.unwrap_err().attempts(), retry.stats().failed_with_retry), (3, 1));
}

#[test]
fn loops_blocking_attempt_that_fails_late_has_timed_out() {
    let retry = eager().max_attempts(2).attempt_timeout(ms(1)).retry_all().build().unwrap();
    let error = retry
        .call_blocking(|_| {
            thread::sleep(ms(3));
            Err::<(), _>(Fault::Io)
        })
        .unwrap_err();
    assert_eq!((error.attempts(), error.fate(), error.last()), (2, Some(Fate::AttemptsExhausted), None));
    retry
        .call_blocking(|_| {
            thread::sleep(ms(3));
            Ok::<_, Fault>(())
        })
        .expect("a late success counts");
    let retry = eager().timeout(ms(2)).retry_all().build().unwrap();
    let error = retry
        .call_blocking(|_| {
            thread::sleep(ms(3));
            Err::<(), _>(Fault::Io)
        })
        .unwrap_err();
    assert_eq!((error.attempts(), error.fate()), (1, Some(Fate::Deadline)));
}

#[derive(Debug)]
struct Wrapped(io::Error);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cannot read the page")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn loops_error_keeps_its_source_and_converts_back() {
    let retry = eager().retry_all().build().unwrap();
    let failing = async |_| Err::<(), _>(Wrapped(io::ErrorKind::BrokenPipe.into()));
    let error = retry.call(failing).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read the page (attempts_exhausted, 3 attempts in 0.0ns)");
    let source = error.source().unwrap();
    assert!(source.is::<Wrapped>() && source.source().unwrap().is::<io::Error>());
    assert_eq!(error.into_last(|_| unreachable!()).0.kind(), io::ErrorKind::BrokenPipe);
}

/// The one-liners of the documents.
#[tokio::test(start_paused = true)]
async fn loops_permanent_statuses_are_not_retried() {
    let grpc = eager().classify(|code: &i32| Class::of_grpc(*code)).build().unwrap();
    let retried = [Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted, Code::Unavailable];
    for code in Code::ALL.into_iter().filter(|code| *code != Code::Ok) {
        let number = i32::try_from(code.number()).unwrap();
        let attempts = if retried.contains(&code) { 3 } else { 1 };
        assert_eq!(play::<(), _, _>(&grpc, &[Err(number)]).await.0.len(), attempts, "{code}");
    }
    let http = eager().classify(|status: &u16| Class::of_http(*status)).build().unwrap();
    for (status, attempts) in [(404, 1), (408, 3), (429, 3), (500, 1), (501, 1), (503, 3), (507, 1)] {
        assert_eq!(play::<(), _, _>(&http, &[Err(status)]).await.0.len(), attempts, "{status}");
    }
    let not_found = Code::NotFound.number() as i32;
    let all = eager().classify(|code: &i32| Class::of_grpc(*code)).codes(&[Code::NotFound]).build().unwrap();
    assert_eq!(play::<(), _, _>(&all, &[Err(not_found)]).await.0.len(), 3, "the caller chooses");
}

#[tokio::test(start_paused = true)]
async fn loops_ninth_limit_by_class_counts() {
    let limit = |class: u32| move |error: &u32| *error == class;
    let retry = eager()
        .stop(Stop::Never)
        .limit(2, limit(1))
        .limit(3, limit(2))
        .limit(4, limit(3))
        .limit(5, limit(4))
        .limit(6, limit(5))
        .limit(7, limit(6))
        .limit(8, limit(7))
        .limit(9, limit(8))
        .limit(10, limit(9))
        .build()
        .unwrap();
    for class in [1, 8, 9] {
        let outcomes = [vec![Err(class); 20], vec![Ok(())]].concat();
        assert_eq!(play(&retry, &outcomes).await.0.len(), class as usize + 1, "{class}");
    }
}

#[tokio::test(start_paused = true)]
async fn loops_without_a_predicate_the_error_type_decides() {
    let retry = eager().build().unwrap();
    let attempts = async |kind: io::ErrorKind| {
        retry.call(async |_| Err::<(), _>(io::Error::from(kind))).await.unwrap_err().attempts()
    };
    assert_eq!(attempts(io::ErrorKind::ConnectionReset).await, 3);
    assert_eq!(attempts(io::ErrorKind::TimedOut).await, 3);
    assert_eq!(attempts(io::ErrorKind::PermissionDenied).await, 1);
}

#[derive(Debug, PartialEq)]
struct Busy;

impl Retryable for Busy {
    fn class(&self) -> Class {
        Class::Failed(Code::ResourceExhausted)
    }

    fn wait_hint(&self) -> Option<Duration> {
        Some(ms(700))
    }
}

#[tokio::test(start_paused = true)]
async fn loops_wait_that_the_callee_asks_for_replaces_the_backoff() {
    let retry = eager().build().unwrap();
    let began = tokio::time::Instant::now();
    let failing = async |attempt: damper_retry::Attempt| {
        assert_eq!(attempt.last_code(), attempt.is_retry().then_some(Code::ResourceExhausted));
        if attempt.number() < 3 { Err(Busy) } else { Ok(began.elapsed()) }
    };
    assert_eq!(retry.call(failing).await.unwrap(), ms(1400));
    let hinted = |seconds| {
        let hint = move |_: &Fault| Some(Duration::from_secs(seconds));
        eager().retry_all().wait_hint(hint).build().unwrap()
    };
    assert_eq!(play::<(), _, _>(&hinted(60), &[Err(Fault::Io)]).await.0, [0, 60_000, 120_000]);
    let (starts, result) = play::<(), _, _>(&hinted(61), &[Err(Fault::Io)]).await;
    assert_eq!((starts.len(), result.unwrap_err().fate()), (1, Some(Fate::Pushback)), "over a minute");
}

#[tokio::test(start_paused = true)]
async fn loops_classes_by_code() {
    let retry = eager()
        .classify(|error: &Fault| match error {
            Fault::Io => Class::TRANSIENT,
            Fault::Timeout => Class::Failed(Code::Internal),
            Fault::Business => Class::NotRetryable,
        })
        .codes(&[Code::Unavailable])
        .build()
        .unwrap();
    for (fault, attempts) in [(Fault::Io, 3), (Fault::Timeout, 1), (Fault::Business, 1)] {
        assert_eq!(play::<(), _, _>(&retry, &[Err(fault)]).await.0.len(), attempts, "{fault:?}");
    }
}

/// tenacity: `stop_after_delay(10) | stop_after_attempt(5)`, `wait_fixed(3) + wait_random(0, 2)`, chain
#[tokio::test(start_paused = true)]
async fn tenacity_stop_and_wait_strategies() {
    let second = Duration::from_secs(1);
    let stop = Stop::After(second * 10).or(Stop::AfterAttempts(5));
    let chain = [vec![second * 3; 3], vec![second * 7; 2], vec![second * 9]].concat();
    let call = eager().stop(stop).retry_all().backoff(Backoff::list(chain.clone())).build().unwrap();
    assert_eq!(play::<(), _, _>(&call, &[Err(Fault::Io)]).await.0, [0, 3000, 6000, 9000]);
    let call = eager().max_attempts(20).retry_all().backoff(Backoff::list(chain)).build().unwrap();
    let (starts, result) = play::<(), _, _>(&call, &[Err(Fault::Io)]).await;
    assert_eq!(starts, [0, 3000, 6000, 9000, 16_000, 23_000, 32_000]);
    assert_eq!(result.unwrap_err().fate(), Some(Fate::AttemptsExhausted), "the list has ended");
    let sum = Backoff::sum([Backoff::fixed(second * 3), Backoff::random(Duration::ZERO, second * 2)]);
    assert_eq!(common::bounds(&sum, 1), [(3000, 4999)]);
}

/// backon: `fetch.retry(ExponentialBuilder::default())`: three retries from one second on.
#[tokio::test(start_paused = true)]
async fn backon_exponential_builder() {
    let second = Duration::from_secs(1);
    let backoff = Backoff::exponential(second).max(second * 60);
    let call = eager().max_attempts(4).backoff(backoff).retry_all().build().unwrap();
    assert_eq!(common::waits(&call).await, [1000, 2000, 4000]);
}

#[tokio::test(start_paused = true)]
async fn loops_call_without_a_handle() {
    let mut left = 3;
    let value = retry(|_| {
        left -= 1;
        let left = left;
        async move { if left > 0 { Err(Fault::Io) } else { Ok(left) } }
    })
    .retry_all()
    .await;
    assert_eq!(value.unwrap(), 0);
    let error = retry(async |_| Err::<(), _>(Fault::Business))
        .retry_if(|error: &Fault| *error == Fault::Io)
        .await
        .unwrap_err();
    assert_eq!(error.attempts(), 1);
    let error = retry(async |_| Err::<(), _>(Fault::Io))
        .retry_all()
        .never_if(|error: &Fault| *error == Fault::Io)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Failed(failed) if failed.attempts == 1));
}
