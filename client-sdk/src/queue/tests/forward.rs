//! Deliveries that are sent as calls.

use damper_core::kill::TimedKill;
use damper_core::{Budget, Kill, Pattern, Policy, Ratio};
use damper_proto::v1::settle::How;
use http::HeaderMap;

use super::*;
use crate::queue::WorkerHandle;
use crate::scenarios::peer::{
    Peer, Reply, ScriptedBody, begun, data, ok, trailers, trailers_only, unavailable,
};
use crate::scenarios::{ended, enforce, engine, with_retry};

struct World {
    engine: Arc<Runtime>,
    peer: Peer,
    stream: WorkStream,
    _plane: Plane,
    _queues: Queues,
    _worker: WorkerHandle,
}

impl World {
    /// A worker that forwards to `inventory`, whose replies are these.
    async fn new(policy: Option<Policy>, script: impl IntoIterator<Item = Reply>) -> Self {
        let engine = engine(policy);
        let (mut plane, queues) = Plane::start(&engine);
        let peer = Peer::new(script);
        let worker = queues.worker(QUEUE).forward("inventory", peer.clone()).concurrency(1).start().unwrap();
        let stream = plane.accept().await;
        Self { engine, peer, stream, _plane: plane, _queues: queues, _worker: worker }
    }

    /// Delivers a job and returns how its delivery ended.
    async fn deliver(&mut self, delivery: v1::Delivery) -> How {
        let lease = delivery.lease.clone();
        self.stream.send(ToWorker::Delivery(delivery)).await;
        assert_eq!(self.stream.started().await, std::slice::from_ref(&lease));
        let settle = self.stream.settle().await;
        assert_eq!(settle.lease, lease);
        self.stream.confirm(&lease).await;
        self.stream.credits().await;
        settle.how.unwrap()
    }
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

fn failure(how: How) -> v1::DeliveryFailure {
    match how {
        How::Failed(failure) => failure,
        other => panic!("expected a failure, received {other:?}"),
    }
}

const DONE: How = How::Done(v1::Done {});

#[tokio::test(start_paused = true)]
async fn kept_bytes_are_sent_in_a_frame_with_their_metadata() {
    for policy in [None, Some(enforce())] {
        let mut world = World::new(policy, [ok()]).await;
        let metadata = [("traceparent", "00-1-2-3"), ("x-tenant", "a"), ("content-type", "text/plain")];
        let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let body = vec![0xff, 0, 1];
        assert_eq!(world.deliver(v1::Delivery { body, metadata, ..delivery(1) }).await, DONE);
        let [seen] = world.peer.seen().try_into().unwrap();
        assert_eq!(seen.body.concat(), [0, 0, 0, 0, 3, 0xff, 0, 1]);
        let header = |name| value(&seen.headers, name);
        assert_eq!((header("content-type"), header("te")), (Some("application/grpc"), Some("trailers")));
        assert_eq!((header("traceparent"), header("x-tenant")), (Some("00-1-2-3"), Some("a")));
        let id = format!("{:032x}", 1);
        assert_eq!((header("damper-job"), header("damper-call")), (Some(id.as_str()), Some(id.as_str())));
        let timeout = header("grpc-timeout").and_then(|value| damper_core::deadline::parse(value.as_bytes()));
        assert_eq!(timeout, Some(Duration::from_secs(30)));
        assert_eq!((header("damper-retry"), header("grpc-previous-rpc-attempts")), (None, None));
        ended(&world.engine, &[("ok", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_delivery_is_sent_once_as_a_retry() {
    for policy in [None, Some(enforce())] {
        let mut world = World::new(policy, [unavailable(), ok()]).await;
        let call_id = "0123456789abcdef0123456789abcdef".to_owned();
        let repeated = |n| v1::Delivery { call_id: call_id.clone(), ..repeated(1, n) };
        assert_eq!(failure(world.deliver(repeated(3)).await).code, 14);
        assert_eq!(world.deliver(repeated(4)).await, DONE);
        for (seen, n) in world.peer.seen().into_iter().zip(["3", "4"]) {
            let header = |name| value(&seen.headers, name);
            assert_eq!((header("damper-retry"), header("grpc-previous-rpc-attempts")), (Some(n), Some(n)));
            assert_eq!(header("damper-call"), Some(call_id.as_str()));
        }
        assert_eq!(world.peer.seen().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn first_delivery_is_an_ordinary_call_under_its_rule() {
    let script = [unavailable(), unavailable(), ok(), unavailable(), unavailable(), unavailable()];
    let mut world = World::new(Some(enforce()), script).await;
    assert_eq!(world.deliver(delivery(1)).await, DONE);
    let failure = failure(world.deliver(delivery(2)).await);
    assert_eq!((failure.code, failure.no_more_retry), (14, false), "the next delivery may succeed");
    assert_eq!(failure.took, Some(prost_types::Duration { seconds: 0, nanos: 20_000_000 }));
    assert_eq!(world.peer.seen().len(), 6);
    ended(&world.engine, &[("ok_after_retry", 1), ("attempts_exhausted", 1)]);
}

#[tokio::test(start_paused = true)]
async fn flag_and_pushback_of_the_callee_reach_the_queue() {
    let flagged = || {
        trailers_only(&[
            ("grpc-status", "14"),
            ("damper-no-more-retry", "1"),
            ("grpc-retry-pushback-ms", "-1"),
        ])
    };
    let patient = || {
        begun(ScriptedBody::over([
            data("part"),
            trailers(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", "5000")]),
        ]))
    };
    for policy in [None, Some(with_retry(|retry| retry.max_attempts = 1))] {
        let mut world = World::new(policy, [flagged(), patient(), Reply::Error("lost".into())]).await;
        let first = failure(world.deliver(repeated(1, 1)).await);
        assert_eq!((first.code, first.no_more_retry, first.pushback.unwrap().seconds), (14, true, -1));
        let second = failure(world.deliver(repeated(2, 1)).await);
        assert_eq!((second.code, second.no_more_retry, second.pushback.unwrap().seconds), (8, false, 5));
        let third = failure(world.deliver(repeated(3, 1)).await);
        assert_eq!((third.code, third.detail.as_str()), (14, "error within the process"));
    }
}

#[tokio::test(start_paused = true)]
async fn message_of_the_callee_is_not_sent() {
    let secret = || trailers_only(&[("grpc-status", "9"), ("grpc-message", "card 4711")]);
    let mut world = World::new(Some(enforce()), [secret()]).await;
    let failure = failure(world.deliver(delivery(1)).await);
    assert_eq!((failure.code, failure.detail.as_str()), (9, ""));
}

fn kill(calls: bool) -> Vec<TimedKill> {
    let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    let kill = Arc::new(Kill::new(pattern, calls, "r".to_owned(), 1).unwrap());
    vec![TimedKill { kill, until: damper_core::Time::from_micros(u64::MAX) }]
}

#[tokio::test(start_paused = true)]
async fn blocked_delivery_is_released_with_the_fate() {
    let released = |why: &str| How::Release(v1::Release { why: why.to_owned(), not_before: None });
    for policy in [None, Some(enforce())] {
        let mut world = World::new(policy, [ok()]).await;
        world.engine.obey(kill(false));
        assert_eq!(world.deliver(repeated(1, 1)).await, released("killed"));
        assert_eq!(world.deliver(delivery(2)).await, DONE, "a kill of retries lets first attempts pass");
        world.engine.obey(kill(true));
        assert_eq!(world.deliver(delivery(3)).await, released("killed"));
        assert_eq!(world.peer.seen().len(), 1);
    }
    let budget = Some(Budget { ratio: Ratio::from_bp(100), min_per_second: 0 });
    let mut world = World::new(Some(Policy { budget, ..enforce() }), []).await;
    assert_eq!(world.deliver(repeated(1, 1)).await, released("budget"));
    assert!(world.peer.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn job_for_another_callee_is_left_to_other_workers() {
    let mut world = World::new(None, []).await;
    let mut route = delivery(1).route.unwrap();
    route.callee_service = "billing".to_owned();
    let how = world.deliver(v1::Delivery { route: Some(route), ..delivery(1) }).await;
    let not_before = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    assert_eq!(how, How::Release(v1::Release { why: "no_channel".to_owned(), not_before }));
}

#[tokio::test(start_paused = true)]
async fn delivery_ends_at_its_limit() {
    for policy in [None, Some(enforce())] {
        let mut world = World::new(policy, [Reply::Hang]).await;
        let limit = Some(prost_types::Duration { seconds: 2, nanos: 0 });
        let failure = failure(world.deliver(v1::Delivery { limit, ..repeated(1, 1) }).await);
        assert_eq!((failure.code, failure.took), (4, limit));
    }
}

#[tokio::test(start_paused = true)]
async fn method_that_is_no_path_is_given_up() {
    let mut world = World::new(None, []).await;
    let mut route = delivery(1).route.unwrap();
    route.callee_method = "two words".to_owned();
    let how = world.deliver(v1::Delivery { route: Some(route), ..delivery(1) }).await;
    assert!(matches!(how, How::Dead(_)), "{how:?}");
}
