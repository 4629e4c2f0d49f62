//! The features of Resilience4j's Retry, with the numbers of its documentation.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Fault, bounds, eager, ms, play, waits};
use damper_retry::{Backoff, Code, Event, EventKind, Fate, Registry, Retry};

/// `maxAttempts(2).waitDuration(1000 ms).retryOnResult(500).retryExceptions(..).ignoreExceptions(..)
/// .failAfterMaxAttempts(true)`
#[tokio::test(start_paused = true)]
async fn resilience4j_configuration_of_the_documentation() {
    let retry = Retry::named("name")
        .max_attempts(2)
        .backoff(Backoff::fixed(ms(1000)))
        .retry_if(|error: &Fault| *error != Fault::Timeout)
        .retry_if_value(|status: &u16| *status == 500)
        .never_if(|error: &Fault| *error == Fault::Business)
        .fail_on_value()
        .build()
        .unwrap();
    let (starts, result) = play(&retry, &[Ok(500)]).await;
    assert_eq!((starts, result.unwrap_err().fate()), (vec![0, 1000], Some(Fate::AttemptsExhausted)));
    assert_eq!(play(&retry, &[Err(Fault::Io), Ok(200)]).await.1.unwrap(), 200);
    assert_eq!(play(&retry, &[Err(Fault::Business)]).await.0.len(), 1, "ignored");
}

#[tokio::test(start_paused = true)]
async fn resilience4j_last_value_is_returned_by_default() {
    let retry = eager().retry_all().retry_if_value(|status: &u16| *status == 500).build().unwrap();
    let (starts, result) = play::<_, Fault, _>(&retry, &[Ok(500)]).await;
    assert_eq!((starts.len(), result.unwrap()), (3, 500));
    assert_eq!(retry.stats().failed_with_retry, 1);
}

#[tokio::test(start_paused = true)]
async fn resilience4j_decorated_function_is_called_often() {
    let retry = eager().retry_all().build().unwrap();
    let decorated = async |outcomes: &[Result<u32, Fault>]| play(&retry, outcomes).await.1;
    for number in 0..100 {
        assert_eq!(decorated(&[Err(Fault::Io), Ok(number)]).await.unwrap(), number);
    }
    assert_eq!(retry.stats().succeeded_with_retry, 100);
}

/// `IntervalFunction.ofExponentialBackoff(500, 1.5)`, `ofExponentialRandomBackoff(500, 1.5, 0.5)`
#[test]
fn resilience4j_interval_functions() {
    let exponential = Backoff::exponential(ms(500)).multiplier(1.5);
    assert_eq!(bounds(&exponential, 3), [(500, 500), (750, 750), (1125, 1125)]);
    let random = exponential.jitter_share(0.5);
    assert_eq!(bounds(&random, 3), [(250, 750), (375, 1125), (562, 1687)]);
}

/// `intervalBiFunction((attempt, either) -> ..)`
#[tokio::test(start_paused = true)]
async fn resilience4j_interval_by_attempt_and_outcome() {
    let retry = eager()
        .max_attempts(4)
        .retry_all()
        .retry_if_value(|value: &u64| *value > 0)
        .wait_by(|attempt, outcome: Result<&u64, &Fault>| {
            Some(outcome.map_or(ms(100) * attempt, |value| ms(*value)))
        })
        .build()
        .unwrap();
    let outcomes = [Err(Fault::Io), Ok(7), Err(Fault::Io), Ok(0)];
    assert_eq!(play(&retry, &outcomes).await.0, [0, 100, 107, 407]);
}

#[tokio::test(start_paused = true)]
async fn resilience4j_events_as_a_stream() {
    let retry = eager().retry_all().tag("zone", "a").build().unwrap();
    play(&retry, &[Ok::<_, Fault>(())]).await.1.unwrap();
    let mut events = retry.events();
    play(&retry, &[Err(Fault::Io), Ok(())]).await.1.unwrap();
    let mut kinds = Vec::new();
    while let Ok(Event { name, tags, kind, .. }) = events.try_recv() {
        assert_eq!((&*name, &*tags), ("test", &[("zone".to_owned(), "a".to_owned())][..]));
        kinds.push(kind);
    }
    let [first, second, EventKind::Ended { attempts: 2, ending }] = kinds[..] else { panic!("{kinds:?}") };
    assert_eq!(first, EventKind::Attempt { attempt: 1, code: Code::Unavailable });
    assert_eq!(second, EventKind::Attempt { attempt: 2, code: Code::Ok });
    assert_eq!(ending.fate, Fate::OkAfterRetry);
    drop(events);
    play(&retry, &[Ok::<_, Fault>(())]).await.1.unwrap();
}

#[tokio::test(start_paused = true)]
async fn resilience4j_four_counters() {
    let retry = eager().retry_if(|error: &Fault| *error == Fault::Io).build().unwrap();
    for outcomes in [
        &[Ok(())][..],
        &[Err(Fault::Io), Ok(())],
        &[Err(Fault::Io)],
        &[Err(Fault::Business)],
        &[Err(Fault::Business)],
    ] {
        _ = play(&retry, outcomes).await;
    }
    let stats = retry.stats();
    assert_eq!((stats.succeeded_without_retry, stats.succeeded_with_retry), (1, 1));
    assert_eq!((stats.failed_without_retry, stats.failed_with_retry), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn resilience4j_registry_with_shared_configurations_and_tags() {
    let registry = Registry::new();
    registry.define("backend", |builder| builder.max_attempts(2).backoff(Backoff::none()).tag("team", "a"));
    let first = registry.retry("orders", Some("backend")).unwrap().retry_all();
    let second = registry.retry("orders", None).unwrap().retry_all();
    assert_eq!(waits(&first).await.len(), 1);
    assert_eq!(second.stats().attempts, 2, "one handle per name");
    assert_eq!(second.tags(), [("team".to_owned(), "a".to_owned())]);
    let other = registry.retry("stock", None).unwrap().retry_all();
    assert_eq!(waits(&other).await.len(), 2, "the defaults");
    let names: Vec<_> = registry.all().iter().map(|retry| retry.name().to_owned()).collect();
    assert_eq!(names, ["orders", "stock"]);
    let faults = registry.retry("users", Some("typo")).unwrap_err();
    assert!(faults.to_string().contains("\"typo\" is not defined"), "{faults}");
}

#[tokio::test(start_paused = true)]
async fn resilience4j_configuration_changes_while_calls_run() {
    let retry = eager().backoff(Backoff::fixed(ms(100))).retry_all().build().unwrap();
    let running = tokio::spawn({
        let retry = retry.clone();
        async move { waits(&retry).await }
    });
    tokio::time::sleep(ms(50)).await;
    retry.update(|settings| settings.max_attempts(5).backoff(Backoff::fixed(ms(10)))).unwrap();
    assert_eq!(waits(&retry).await, [10; 4]);
    assert_eq!(running.await.unwrap(), [100; 2], "as it began");
    let faults = retry.update(|settings| settings.max_attempts(0)).unwrap_err();
    assert!(faults.to_string().contains("max_attempts"), "{faults}");
    assert_eq!(waits(&retry).await, [10; 4], "nothing has changed");
    assert_eq!(retry.stats().attempts, 3 + 5 + 5);
}

#[tokio::test(start_paused = true)]
async fn resilience4j_update_changes_how_a_last_value_ends() {
    let retry = eager().retry_all().retry_if_value(|status: &u16| *status == 500).build().unwrap();
    retry.update(|settings| settings.fail_on_value()).unwrap();
    play::<_, Fault, _>(&retry, &[Ok(500)]).await.1.unwrap_err();
}
