//! Workers: what they send, and how their handlers end.

use std::sync::atomic::AtomicU64;

use damper_proto::v1::settle::How;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::*;
use crate::context::Context;
use crate::headers;
use crate::queue::{Delivery, HandlerError, NeverAgain, WorkerHandle};
use crate::scenarios::{engine, ms};

/// A running handler, which the test ends.
struct Handling {
    delivery: Delivery,
    result: oneshot::Sender<Result<(), HandlerError>>,
}

impl Handling {
    fn ends(self, result: Result<(), HandlerError>) {
        self.result.send(result).unwrap();
    }

    /// Waits until the handler was dropped.
    async fn cancelled(mut self) {
        soon(self.result.closed()).await;
    }
}

struct World {
    plane: Plane,
    queues: Queues,
    worker: WorkerHandle,
    handling: mpsc::UnboundedReceiver<Handling>,
}

impl World {
    /// A worker whose handlers are passed to the test.
    fn new(concurrency: u32) -> Self {
        Self::draining(concurrency, Duration::from_secs(10))
    }

    fn draining(concurrency: u32, drain: Duration) -> Self {
        let (plane, queues) = Plane::start(&engine(None));
        let (begun, handling) = mpsc::unbounded_channel();
        let worker = queues.worker(QUEUE).handle(move |delivery| {
            let begun = begun.clone();
            async move {
                let (result, ends) = oneshot::channel();
                begun.send(Handling { delivery, result }).unwrap();
                ends.await.unwrap()
            }
        });
        let worker = worker.concurrency(concurrency).drain(drain).start().unwrap();
        Self { plane, queues, worker, handling }
    }

    async fn begun(&mut self) -> Handling {
        soon(self.handling.recv()).await.unwrap()
    }
}

fn how(settle: v1::Settle) -> How {
    settle.how.unwrap()
}

fn failure(settle: v1::Settle) -> v1::DeliveryFailure {
    match how(settle) {
        How::Failed(failure) => failure,
        other => panic!("expected a failure, received {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn delivery_is_started_handled_and_settled() {
    let mut world = World::new(3);
    let mut stream = world.plane.accept().await;
    assert_eq!(stream.hello.identity.as_ref().unwrap().instance, "orders-1");
    assert_eq!(stream.hello.queues, [v1::Credits { queue: QUEUE.to_owned(), more: 3 }]);
    assert!(stream.hello.leases.is_empty());
    stream.send(ToWorker::Delivery(delivery(1))).await;
    assert_eq!(stream.started().await, [[1]]);
    let handling = world.begun().await;
    assert_eq!(&handling.delivery.body()[..], b"hello");
    assert_eq!(world.worker.stats().running, 1);
    tokio::time::sleep(ms(70)).await;
    handling.ends(Ok(()));
    let settle = stream.settle().await;
    assert_eq!((&settle.lease[..], how(settle.clone())), (&[1][..], How::Done(v1::Done {})));
    assert_eq!(stream.credits().await, 1);
    assert_eq!((world.worker.stats().unconfirmed, world.worker.stats().done), (1, 1));
    stream.confirm(&[1]).await;
    world.worker.stop().await;
    assert_eq!(stream.next().await, Some(FromWorker::Bye(v1::Bye {})));
    assert_eq!(stream.next().await, None);
    let stats = world.worker.stats();
    assert_eq!((stats.begun, stats.done, stats.running, stats.unconfirmed), (1, 1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn deliveries_that_arrive_together_start_in_one_message() {
    let mut world = World::new(5);
    let mut stream = world.plane.accept().await;
    for lease in 1..=5 {
        stream.send(ToWorker::Delivery(delivery(lease))).await;
    }
    let mut started = Vec::new();
    let mut messages = 0;
    while started.len() < 5 {
        started.extend(stream.started().await);
        messages += 1;
    }
    assert_eq!(started, [[1], [2], [3], [4], [5]]);
    assert!(messages < 5, "{messages}");
    for _ in 0..5 {
        world.begun().await.ends(Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn credits_on_the_wire_never_exceed_free_slots() {
    const SLOTS: u32 = 3;
    let mut world = World::new(SLOTS);
    let mut stream = world.plane.accept().await;
    let (mut credits, mut lease, mut handlers) = (SLOTS, 0_u8, Vec::new());
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..100 {
        while credits > 0 && random.bool() {
            credits -= 1;
            lease += 1;
            stream.send(ToWorker::Delivery(delivery(lease))).await;
            assert_eq!(stream.started().await, [[lease]]);
            handlers.push(world.begun().await);
        }
        assert!(credits + u32::try_from(handlers.len()).unwrap() <= SLOTS);
        if !handlers.is_empty() {
            handlers.swap_remove(random.usize(..handlers.len())).ends(Ok(()));
            let settle = stream.settle().await;
            stream.confirm(&settle.lease).await;
            credits += stream.credits().await;
            assert!(credits + u32::try_from(handlers.len()).unwrap() <= SLOTS);
        }
    }
    assert!(lease > 30, "{lease}");
}

#[tokio::test(start_paused = true)]
async fn reconnected_worker_names_its_leases_and_repeats_ends() {
    let mut world = World::new(3);
    let mut stream = world.plane.accept().await;
    for lease in 1..=2 {
        stream.send(ToWorker::Delivery(delivery(lease))).await;
        stream.started().await;
    }
    let (first, second) = (world.begun().await, world.begun().await);
    first.ends(Ok(()));
    let settle = stream.settle().await;
    assert_eq!(stream.credits().await, 1);
    // The connection is lost before the confirmation.
    stream.fail(Status::unavailable("restart")).await;
    let mut stream = world.plane.accept().await;
    assert_eq!(stream.hello.leases, [[1], [2]]);
    assert_eq!(stream.hello.queues[0].more, 2, "one handler runs");
    assert_eq!(stream.started().await, [[2]]);
    assert_eq!(stream.settle().await, settle);
    // Ends while there is no stream.
    stream.fail(Status::unavailable("restart")).await;
    second.ends(Err(Status::aborted("").into()));
    let mut stream = world.plane.accept().await;
    assert_eq!(stream.hello.leases, [[1], [2]]);
    let mut ends = vec![stream.settle().await];
    ends.push(stream.settle().await);
    assert_eq!(ends[0], settle);
    assert_eq!(failure(ends.pop().unwrap()).code, 10);
    for lease in 1..=2 {
        stream.confirm(&[lease]).await;
    }
    stream.fail(Status::unavailable("restart")).await;
    let stream = world.plane.accept().await;
    assert!(stream.hello.leases.is_empty(), "both are confirmed");
    assert_eq!(stream.hello.queues[0].more, 3);
    assert!(world.plane.ends().iter().all(|end| matches!(end, LineEnd::Lasted(_))));
}

#[tokio::test(start_paused = true)]
async fn goodbye_moves_the_worker_to_another_server() {
    let mut world = World::new(1);
    let stream = world.plane.accept().await;
    stream.send(ToWorker::Goodbye(v1::Goodbye { reason: "drain".to_owned() })).await;
    let _second = world.plane.accept().await;
    assert_eq!(world.plane.tried(), 2);
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_left_after_three_missing_signs() {
    let mut world = World::new(1);
    let mut stream = world.plane.accept().await;
    stream.is_alive = false;
    let begun = Instant::now();
    let mut signs = 0;
    while let Some(message) = stream.next().await {
        assert_eq!(message, FromWorker::Alive(v1::Alive {}));
        signs += 1;
    }
    assert_eq!((begun.elapsed(), signs), (Duration::from_secs(15), 2));
    let _second = world.plane.accept().await;
}

#[tokio::test(start_paused = true)]
async fn lost_leases_of_the_welcome_stop_their_handlers() {
    let mut world = World::new(2);
    let mut stream = world.plane.accept().await;
    for lease in 1..=2 {
        stream.send(ToWorker::Delivery(delivery(lease))).await;
        stream.started().await;
    }
    let (first, second) = (world.begun().await, world.begun().await);
    stream.fail(Status::unavailable("restart")).await;
    let mut stream = world.plane.accept_silently().await;
    stream.send(ToWorker::Welcome(v1::WorkerWelcome { lost: vec![vec![1]] })).await;
    first.cancelled().await;
    assert_eq!(stream.started().await, [[1], [2]]);
    assert_eq!(stream.credits().await, 1, "its slot is free");
    second.ends(Ok(()));
    assert_eq!(stream.settle().await.lease, [2]);
    assert_eq!(world.worker.stats().cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn cancelled_lease_stops_its_handler_without_an_end() {
    let mut world = World::new(1);
    let mut stream = world.plane.accept().await;
    stream.send(ToWorker::Delivery(delivery(1))).await;
    stream.started().await;
    let handling = world.begun().await;
    stream.send(ToWorker::Cancelled(v1::LeaseCancelled { lease: vec![1] })).await;
    handling.cancelled().await;
    assert_eq!(stream.credits().await, 1);
    stream.send(ToWorker::Cancelled(v1::LeaseCancelled { lease: vec![9] })).await;
    stream.send(ToWorker::Delivery(delivery(2))).await;
    assert_eq!(stream.started().await, [[2]]);
    world.begun().await.ends(Ok(()));
    assert_eq!(stream.settle().await.lease, [2]);
}

#[tokio::test(start_paused = true)]
async fn panic_is_internal_and_the_worker_goes_on() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let worker = queues.worker(QUEUE).handle(|delivery| {
        // Once before the future, once within it.
        assert!(delivery.number() != 1, "expected by the test");
        async move {
            assert!(delivery.number() != 2, "expected by the test");
            Ok::<_, Status>(())
        }
    });
    let _worker = worker.concurrency(1).start().unwrap();
    let mut stream = plane.accept().await;
    for number in 1..=3 {
        stream.send(ToWorker::Delivery(v1::Delivery { number, ..delivery(1) })).await;
        stream.started().await;
        let settle = stream.settle().await;
        match number {
            3 => assert_eq!(how(settle), How::Done(v1::Done {})),
            _ => {
                let failure = failure(settle);
                assert_eq!((failure.code, failure.detail.as_str()), (13, "the handler panicked"));
            }
        }
        stream.confirm(&[1]).await;
        assert_eq!(stream.credits().await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_is_cancelled_at_the_time_limit() {
    let mut world = World::new(1);
    let mut stream = world.plane.accept().await;
    let limit = Some(prost_types::Duration { seconds: 7, nanos: 0 });
    stream.send(ToWorker::Delivery(v1::Delivery { limit, ..delivery(1) })).await;
    stream.started().await;
    let (handling, begun) = (world.begun().await, Instant::now());
    let failure = failure(stream.settle().await);
    assert_eq!(failure.code, 4);
    assert_eq!(failure.took, limit);
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    handling.cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_handler_become_code_flag_and_pushback() {
    let mut world = World::new(1);
    let mut stream = world.plane.accept().await;
    let with = |name: &'static str, value: &'static str| {
        let mut status = Status::unavailable("text of a callee");
        status.metadata_mut().insert(name, value.parse().unwrap());
        status
    };
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let pushback = headers::PUSHBACK.as_str();
    let table: [(HandlerError, i32, bool, Option<prost_types::Duration>, &str); 6] = [
        (Status::not_found("x").into(), 5, false, None, ""),
        (Status::ok("x").into(), 2, false, None, ""),
        (with(pushback, "3000").into(), 14, false, seconds(3), ""),
        (with(pushback, "-1").into(), 14, false, seconds(-1), ""),
        (with(headers::NO_MORE_RETRY.as_str(), "1").into(), 14, true, None, ""),
        (HandlerError::from(Status::aborted("x")).describe("at step 3"), 10, false, None, "at step 3"),
    ];
    for (error, code, no_more_retry, pushback, detail) in table {
        let shown = error.to_string();
        stream.send(ToWorker::Delivery(delivery(1))).await;
        stream.started().await;
        world.begun().await.ends(Err(error));
        let failure = failure(stream.settle().await);
        assert_eq!(
            (failure.code, failure.no_more_retry, failure.pushback, failure.detail.as_str()),
            (code, no_more_retry, pushback, detail),
            "{shown}"
        );
        stream.confirm(&[1]).await;
        stream.credits().await;
    }
    stream.send(ToWorker::Delivery(delivery(1))).await;
    stream.started().await;
    world.begun().await.ends(Err(NeverAgain::new("\u{e9}".repeat(200)).into()));
    let How::Dead(v1::Dead { reason }) = how(stream.settle().await) else { panic!("it is given up") };
    assert_eq!(reason, "\u{e9}".repeat(100), "200 bytes are kept");
    let stats = world.worker.stats();
    assert_eq!((stats.failed, stats.dead), (6, 1));
}

#[tokio::test(start_paused = true)]
async fn handler_runs_in_the_context_of_its_delivery() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let (seen, mut contexts) = mpsc::unbounded_channel();
    let worker = queues.worker(QUEUE).handle(move |_| {
        let (outer, seen) = (Context::current().unwrap(), seen.clone());
        async move {
            let context = Context::current().unwrap();
            assert_eq!(outer.is_retry(), context.is_retry());
            // A call of the handler gave up.
            context.mark_final();
            seen.send((context.is_retry(), context.time_left())).unwrap();
            Err::<(), _>(Status::aborted(""))
        }
    });
    let _worker = worker.start().unwrap();
    let mut stream = plane.accept().await;
    for (delivery, is_retry) in [(delivery(1), false), (repeated(2, 3), true)] {
        stream.send(ToWorker::Delivery(delivery)).await;
        stream.started().await;
        assert_eq!(soon(contexts.recv()).await, Some((is_retry, Some(Duration::from_secs(30)))));
        assert!(failure(stream.settle().await).no_more_retry);
        stream.credits().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_worker_releases_new_deliveries_and_drains() {
    let mut world = World::new(2);
    let mut stream = world.plane.accept().await;
    stream.send(ToWorker::Delivery(delivery(1))).await;
    stream.started().await;
    let handling = world.begun().await;
    let stopping = async {
        world.worker.stop().await;
        Instant::now()
    };
    let script = async {
        tokio::time::sleep(ms(500)).await;
        stream.send(ToWorker::Delivery(delivery(2))).await;
        let settle = stream.settle().await;
        assert_eq!(settle.lease, [2]);
        let release = v1::Release { why: "shutdown".to_owned(), not_before: None };
        assert_eq!(how(settle), How::Release(release));
        stream.confirm(&[2]).await;
        handling.ends(Ok(()));
        assert_eq!(how(stream.settle().await), How::Done(v1::Done {}));
        tokio::time::sleep(ms(500)).await;
        let confirmed = Instant::now();
        stream.confirm(&[1]).await;
        assert_eq!(stream.next().await, Some(FromWorker::Bye(v1::Bye {})), "no credits");
        assert_eq!(stream.next().await, None);
        drop(stream);
        confirmed
    };
    let (ended, confirmed) = tokio::join!(stopping, script);
    assert_eq!(ended, confirmed, "it waits for the confirmations, not for the whole drain time");
}

#[tokio::test(start_paused = true)]
async fn handler_beyond_the_drain_time_is_cut_and_not_settled() {
    let mut world = World::draining(1, Duration::from_secs(2));
    let mut stream = world.plane.accept().await;
    stream.send(ToWorker::Delivery(delivery(1))).await;
    stream.started().await;
    let (handling, begun) = (world.begun().await, Instant::now());
    let script = async {
        assert_eq!(stream.next().await, Some(FromWorker::Bye(v1::Bye {})));
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        assert!(handling.result.is_closed(), "cut before the goodbye");
        assert_eq!(stream.next().await, None);
        drop(stream);
    };
    tokio::join!(world.worker.stop(), script);
}

#[tokio::test(start_paused = true)]
async fn shutdown_stops_all_workers() {
    let mut world = World::new(1);
    let second = world.queues.worker("emails").handle(|_| async { Ok::<_, Status>(()) }).start().unwrap();
    let (mut one, mut two) = (world.plane.accept().await, world.plane.accept().await);
    let script = async {
        for stream in [&mut one, &mut two] {
            assert_eq!(stream.next().await, Some(FromWorker::Bye(v1::Bye {})));
        }
        drop((one, two));
    };
    tokio::join!(world.queues.shutdown(), script);
    second.stop().await;
    world.worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn worker_outlives_its_handle_but_not_the_queues() {
    let World { mut plane, queues, worker, handling: _handling } = World::new(1);
    let mut stream = plane.accept().await;
    drop(worker);
    stream.send(ToWorker::Delivery(delivery(1))).await;
    assert_eq!(stream.started().await, [[1]]);
    drop(queues);
    loop {
        match stream.next().await {
            Some(FromWorker::Bye(_)) => break,
            Some(_) => {}
            None => panic!("no goodbye"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn handler_that_ignores_its_end_keeps_its_slot() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let (ended, blocks) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
    let waits = Arc::clone(&ended);
    let blocked = Arc::clone(&blocks);
    let worker = queues.worker(QUEUE).handle(move |_| {
        let (waits, blocked) = (Arc::clone(&waits), Arc::clone(&blocked));
        async move {
            blocked.fetch_add(1, Ordering::SeqCst);
            waits.notified().await;
            Ok::<_, Status>(())
        }
    });
    let worker = worker.concurrency(1).start().unwrap();
    let mut stream = plane.accept().await;
    stream.send(ToWorker::Delivery(delivery(1))).await;
    stream.started().await;
    assert_eq!(worker.stats().stuck, 0);
    ended.notify_one();
    assert_eq!(stream.settle().await.lease, [1]);
    assert_eq!((blocks.load(Ordering::SeqCst), worker.stats().stuck), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn worker_reconnects_until_it_is_accepted() {
    let (mut plane, queues) = Plane::start(&engine(None));
    plane.refuse(3);
    let worker = queues.worker(QUEUE).handle(|_| async { Ok::<_, Status>(()) }).start().unwrap();
    let stream = plane.accept_silently().await;
    let stats = worker.stats();
    assert_eq!((stats.connected, stats.last_problem.as_deref()), (false, Some("refused")));
    // Not accepted: the wait is that of a denial.
    stream.fail(Status::permission_denied("not yours")).await;
    let _stream = plane.accept().await;
    assert_eq!((plane.tried(), plane.ends()), (5, vec![LineEnd::Denied]));
    soon(async {
        while !worker.stats().connected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn late_end_of_a_lost_lease_is_counted() {
    let mut world = World::new(1);
    let mut stream = world.plane.accept().await;
    stream.send(ToWorker::Delivery(delivery(1))).await;
    stream.started().await;
    world.begun().await.ends(Ok(()));
    stream.settle().await;
    stream.send(ToWorker::Settled(v1::Settled { lease: vec![1], lost: true })).await;
    stream.send(ToWorker::Delivery(delivery(2))).await;
    world.begun().await.ends(Ok(()));
    let stats = world.worker.stats();
    assert_eq!((stats.lost, stats.unconfirmed), (1, 0));
}

#[tokio::test]
async fn all_faults_of_a_worker_are_reported_together() {
    let queues = Queues::off(&engine(None));
    let worker = queues.worker("Two Words").handle(|_| async { Ok::<_, Status>(()) });
    let peer = crate::scenarios::peer::Peer::default();
    let worker = worker.forward("inventory", peer).concurrency(1_001).drain(Duration::MAX);
    let faults = worker.start().unwrap_err();
    let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["forward", "queue", "concurrency", "drain", "control plane"]);
}

#[test]
fn worker_needs_a_runtime() {
    let queues = Queues::off(&engine(None));
    let faults = queues.worker(QUEUE).handle(|_| async { Ok::<_, Status>(()) }).start().unwrap_err();
    assert!(faults.to_string().contains("runtime"), "{faults}");
}
