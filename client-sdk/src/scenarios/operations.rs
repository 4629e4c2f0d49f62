//! Governed operations: the rule, the chain, kills and reports, as for calls of the client layer.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use damper_core::kill::TimedKill;
use damper_core::{Code, CodeSet, Fate, Hedge, HedgeDelay, Kill, MethodPart, Part};
use damper_retry::{ByType, Error, Reason};
use tokio::time::Instant;

use super::peer::{Peer, trailers_only, unavailable};
use super::*;
use crate::operation::{Governed, Operation};
use crate::{Context, ServerLayer};

/// Returns the operation `orders/insert` of a database.
fn operation(engine: &Arc<Runtime>) -> Operation {
    let callee = engine.callee("billing-db").unwrap();
    Operation::from_source("insert", Governed::new(Arc::clone(engine), callee, "orders/insert"), ByType)
}

fn lost() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// A database that fails `failures` times.
struct Database {
    failures: u32,
    runs: AtomicU32,
}

impl Database {
    fn failing(failures: u32) -> Self {
        Self { failures, runs: AtomicU32::new(0) }
    }

    async fn insert(&self) -> io::Result<u32> {
        match self.runs.fetch_add(1, Ordering::Relaxed) {
            run if run < self.failures => Err(lost()),
            run => Ok(run),
        }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }
}

fn kill(calls: bool, engine: &Runtime) -> TimedKill {
    let mut pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    pattern.callee_service = Part::Exact("billing-db".to_owned());
    pattern.callee_method = MethodPart::Exact("orders/insert".to_owned());
    let kill = Kill::new(pattern, calls, "migration".to_owned(), 1).unwrap();
    TimedKill { kill: Arc::new(kill), until: engine.clock().now() + Duration::from_secs(60) }
}

#[tokio::test(start_paused = true)]
async fn operation_is_retried_as_its_rule_sets() {
    let (engine, database, began) = (engine(enforce()), Database::failing(2), Instant::now());
    assert_eq!(operation(&engine).call(async |_| database.insert().await).await.unwrap(), 2);
    assert_eq!((database.runs(), began.elapsed()), (3, ms(20)));
    ended(&engine, &[("ok_after_retry", 1)]);
    let mut routes = Vec::new();
    engine.for_each_route(|callee, method, route| {
        routes.push((callee.to_owned(), method.to_owned(), route.state().counters.retries()));
    });
    assert_eq!(routes, [("billing-db".to_owned(), "orders/insert".to_owned(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn stateful_operation_runs_each_time_unless_a_rule_ends_it() {
    for (policy, runs) in [(None, 5), (Some(observe()), 5), (Some(enforce()), 3)] {
        let (engine, database) = (engine(policy), Database::failing(9));
        let insert = operation(&engine).stateful(10, ms(60_000));
        let mut recoveries = Vec::new();
        for delivery in 1..=5 {
            let error = insert.call(7, async |_| database.insert().await).await.unwrap_err();
            recoveries.extend(error.is_recovery().then_some(delivery));
            if !recoveries.is_empty() {
                break;
            }
        }
        let expected = if runs == 3 { vec![4] } else { vec![] };
        assert_eq!((database.runs(), recoveries), (runs, expected));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_rule_and_in_observe_mode_an_operation_runs_once() {
    for (policy, fate) in [(None, "policy_off"), (Some(observe()), "would_retry")] {
        let (engine, database) = (engine(policy), Database::failing(9));
        let error = operation(&engine).call(async |_| database.insert().await).await.unwrap_err();
        assert_eq!(error.last().unwrap().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(database.runs(), 1);
        ended(&engine, &[(fate, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_rule_applies_to_the_next_call() {
    let (engine, database) = (engine(None), Database::failing(1));
    let operation = operation(&engine);
    assert!(operation.call(async |_| database.insert().await).await.is_err());
    engine.apply(table(enforce()));
    let database = Database::failing(1);
    assert!(operation.call(async |_| database.insert().await).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn kill_of_retries_ends_a_wait_at_once_and_a_kill_of_calls_rejects() {
    let waits = Backoff::Always(Waits::Fixed { delay: ms(30_000), jitter: Jitter::None });
    let (engine, database) =
        (engine(with_retry(|retry| retry.backoff = waits)), Arc::new(Database::failing(9)));
    let (insert, running) = (operation(&engine), Arc::clone(&database));
    let call = tokio::spawn(async move { insert.call(async |_| running.insert().await).await });
    tokio::time::sleep(ms(1_000)).await;
    let killed = Instant::now();
    engine.obey(vec![kill(false, &engine)]);
    let error = call.await.unwrap().unwrap_err();
    assert_eq!((error.fate(), killed.elapsed()), (Some(Fate::Killed), Duration::ZERO));
    engine.obey(vec![kill(true, &engine)]);
    let error = operation(&engine).call(async |_| database.insert().await).await.unwrap_err();
    let Error::NotAnswered(error) = error else { panic!("{error}") };
    assert!(matches!(error.reason, Reason::Ended(ending) if ending.fate == Fate::Killed));
    assert_eq!((error.attempts, database.runs()), (0, 1));
    ended(&engine, &[("killed", 2)]);
}

#[tokio::test(start_paused = true)]
async fn operation_in_serving_a_retry_runs_once() {
    let (engine, database) = (engine(enforce()), Database::failing(9));
    let context = Context::new(Some(1), None, engine.clock());
    let insert = operation(&engine);
    let call = insert.call(async |_| database.insert().await);
    context.clone().scope(call).await.unwrap_err();
    assert_eq!(database.runs(), 1);
    ended(&engine, &[("chain_retry_flag", 1)]);
    assert!(!context.chain().no_more_retry(Code::Unavailable), "the layer above retries");
}

#[tokio::test]
async fn blocking_operation_belongs_to_the_request_too() {
    let engine = engine(enforce());
    let (insert, runs) = (operation(&engine), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&runs);
    let blocking = move || {
        insert.call_blocking(|_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(lost())
        })
    };
    let context = Context::new(Some(1), None, engine.clock());
    let result = context.scope(async { crate::spawn_blocking(blocking).await }).await.unwrap();
    assert_eq!(result.unwrap_err().fate(), Some(Fate::ChainRetryFlag));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn operation_keeps_within_the_deadline_of_its_request() {
    let engine = engine(enforce());
    let context = Context::new(None, Some(engine.clock().now() + ms(100)), engine.clock());
    let began = Instant::now();
    let insert = operation(&engine);
    let call = insert.call(async |attempt| {
        assert_eq!(attempt.deadline(), Some(began + ms(100)));
        std::future::pending::<io::Result<()>>().await
    });
    let error = context.scope(call).await.unwrap_err();
    assert_eq!((error.fate(), began.elapsed()), (Some(Fate::Deadline), ms(100)));
}

#[tokio::test(start_paused = true)]
async fn operation_that_gives_up_marks_the_response_to_its_request() {
    let (engine, database) = (engine(enforce()), Arc::new(Database::failing(9)));
    let (insert, running) = (operation(&engine), Arc::clone(&database));
    let handler = tower::service_fn(move |_: Request<Body>| {
        let (insert, running) = (insert.clone(), Arc::clone(&running));
        async move {
            insert.call(async |_| running.insert().await).await.unwrap_err();
            Ok::<_, BoxError>(tonic::Status::internal("no order").into_http::<Body>())
        }
    });
    let mut server = ServerLayer::new(Arc::clone(&engine)).layer(handler);
    let answer = call(&mut server, request()).await.unwrap();
    assert_eq!(answer.headers.get("damper-no-more-retry").unwrap(), "1");
    assert_eq!(database.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn calls_within_a_retry_are_sent_once_with_the_flag() {
    let engine = engine(enforce());
    let peer = Peer::new([unavailable(), unavailable(), unavailable(), unavailable()]);
    let client = governed(&engine, peer.clone());
    let insert = operation(&engine);
    // The first attempt fails before its call; the call within the second one is part of a retry.
    let outcome = insert.call(|attempt| {
        let mut client = client.clone();
        async move {
            if attempt.number() > 1 {
                call(&mut client, request()).await.unwrap();
            }
            Err::<(), _>(lost())
        }
    });
    outcome.await.unwrap_err();
    let flags: Vec<_> = peer.seen().iter().map(|seen| seen.headers.get("damper-retry").cloned()).collect();
    assert_eq!(flags, [Some("1".parse().unwrap()), Some("2".parse().unwrap())]);
}

#[tokio::test(start_paused = true)]
async fn call_that_gave_up_within_an_operation_is_not_retried_by_it() {
    let engine = engine(enforce());
    let down = || trailers_only(&[("grpc-status", "14")]);
    let peer = Peer::new((0..20).map(|_| down()));
    let client = governed(&engine, peer.clone());
    let insert = operation(&engine);
    let outcome = insert.call(|_| {
        let mut client = client.clone();
        async move {
            call(&mut client, request()).await.unwrap();
            Err::<(), _>(lost())
        }
    });
    assert_eq!(outcome.await.unwrap_err().fate(), Some(Fate::ChainNoMoreRetry));
    assert_eq!(peer.seen().len(), 3, "only the layer nearest the fault retries");
}

#[tokio::test(start_paused = true)]
async fn only_a_hedged_call_hedges() {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 });
    let engine = engine(Policy { hedge, ..enforce() });
    let insert = operation(&engine);
    let runs = AtomicU32::new(0);
    let slow = || async {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(ms(if run == 0 { 200 } else { 10 })).await;
        io::Result::Ok(run)
    };
    let began = Instant::now();
    assert_eq!(insert.call_hedged(|_| slow()).await.unwrap(), 1);
    assert_eq!((began.elapsed(), runs.swap(0, Ordering::Relaxed)), (ms(60), 2));
    assert_eq!(insert.call(|_| slow()).await.unwrap(), 0);
    ended(&engine, &[("ok", 1), ("ok_by_hedge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn failed_operation_leaves_its_attempts() {
    let policy = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(5));
        retry.codes = CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]);
    });
    let engine = engine(policy);
    let insert = operation(&engine);
    let outcome = insert.call(async |attempt| {
        if attempt.number() == 2 {
            std::future::pending::<()>().await;
        }
        Err::<(), _>(lost())
    });
    assert_eq!(outcome.await.unwrap_err().attempts(), 3);
    let mut failed = Vec::new();
    engine.for_each_route(|_, _, route| failed.extend(route.failures().take()));
    let attempts: Vec<_> = failed[0].attempts.iter().map(|attempt| (attempt.number, attempt.code)).collect();
    assert_eq!(attempts, [(1, Code::Unavailable), (2, Code::DeadlineExceeded), (3, Code::Unavailable)]);
}

#[test]
fn invalid_names_of_an_operation_are_reported_together() {
    let faults = crate::Damper::off().operation("billing/db", "insert").unwrap_err().to_string();
    assert!(faults.contains("callee_service: ") && faults.contains("callee_method: "), "{faults}");
}
