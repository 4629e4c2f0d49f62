//! Hand-overs: which calls become jobs, and what their application gets.

use damper_core::{CallOptions, Chain, Code, Policy};
use futures_util::FutureExt as _;
use http::{HeaderMap, Request};
use tokio::time::Instant;
use tonic::body::Body;

use super::*;
use crate::client::{ClientService, HandOver, handed_over};
use crate::context::Context;
use crate::queue::HandOverStats;
use crate::scenarios::held::{holding, message_then};
use crate::scenarios::peer::{
    Peer, Reply, ScriptedBody, after, begun, data, ok, trailers, trailers_only, unavailable,
};
use crate::scenarios::{Answer, call, ended, enforce, engine, governed, ms, observe, request_of, with_retry};

/// A message of five bytes in its frame.
const FRAMED: &str = "\0\0\0\0\x05hello";

fn wanted(hand_over: HandOver) -> Request<Body> {
    let mut request = request_of(&[FRAMED]);
    request.extensions_mut().insert(hand_over);
    request
}

fn request() -> Request<Body> {
    wanted(HandOver::to(QUEUE, "order-17"))
}

/// A callee that fails each attempt of the scenarios' policy.
fn down() -> Peer {
    Peer::new((0..3).map(|_| unavailable()))
}

struct World {
    engine: Arc<Runtime>,
    plane: Plane,
    queues: Queues,
}

impl World {
    fn new(policy: impl Into<Option<Policy>>) -> Self {
        Self::of(engine(policy))
    }

    fn of(engine: Arc<Runtime>) -> Self {
        let (plane, queues) = Plane::start(&engine);
        Self { engine, plane, queues }
    }

    fn to(&self, peer: &Peer) -> ClientService<Peer> {
        governed(&self.engine, peer.clone())
    }

    /// Number of calls accepted, failed and orphaned.
    #[track_caller]
    fn counted(&self, expected: [u64; 3]) {
        let HandOverStats { accepted, failed, orphans } = self.queues.hand_overs();
        assert_eq!([accepted, failed, orphans], expected);
    }
}

fn job_in(fields: &HeaderMap) -> Option<&str> {
    fields.get("damper-job").map(|value| value.to_str().unwrap())
}

/// The error of a failed call, without the marker and the report.
fn error_of(answer: &Answer) -> Vec<(String, String)> {
    let fields = answer.trailers.as_ref().unwrap_or(&answer.headers);
    let fields = fields.iter().filter(|(name, _)| !["damper-job", "damper-fate"].contains(&name.as_str()));
    fields.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn failed_call_becomes_a_job_and_keeps_its_error() {
    let mut world = World::new(enforce());
    let slow = |reply| after(7, reply);
    let peer = Peer::new([unavailable(), unavailable(), slow(unavailable())]);
    let mut request = wanted(HandOver::to(QUEUE, "order-17").order_key("o").keep_metadata([
        "traceparent",
        "X-Tenant",
        "X-b-bin",
    ]));
    for (name, value) in [
        ("traceparent", "00-1-2-3"),
        ("x-tenant", "a"),
        ("authorization", "Bearer x"),
        ("x-b-bin", "AA"),
        ("damper-call", "0123456789abcdef0123456789abcdef"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let mut service = world.to(&peer);
    let (answer, asked) = tokio::join!(call(&mut service, request), world.plane.store());
    let answer = answer.unwrap();
    let [job] = asked.jobs.try_into().unwrap();
    assert_eq!(
        error_of(&answer),
        [("grpc-status", "14"), ("grpc-message", "down")].map(|(a, b)| (a.into(), b.into()))
    );
    assert_eq!(job_in(&answer.headers).unwrap(), crate::queue::jobs::hex(&job.job_id));
    let status = Status::from_header_map(&answer.headers).unwrap();
    assert_eq!(handed_over(&status), job_in(&answer.headers));
    assert_eq!(crate::record::report::fate(&status).unwrap().ending.to_string(), "attempts_exhausted");
    assert_eq!((job.queue.as_str(), job.key.as_str(), job.order_key.as_str()), (QUEUE, "order-17", "o"));
    assert_eq!(
        (job.callee_service.as_str(), job.callee_method.as_str()),
        ("inventory", "inventory.v1.Inventory/Reserve")
    );
    assert_eq!((job.body, job.sends_before), (b"hello".to_vec(), 3));
    assert_eq!(job.call_id, "0123456789abcdef0123456789abcdef");
    let failed = job.failed.unwrap();
    assert_eq!((failed.code, failed.no_more_retry, failed.pushback), (14, false, None));
    assert_eq!(failed.took, Some(prost_types::Duration { seconds: 0, nanos: 7_000_000 }));
    let mut kept: Vec<_> = job.metadata.into_iter().collect();
    kept.sort();
    assert_eq!(kept, [("traceparent", "00-1-2-3"), ("x-tenant", "a")].map(|(a, b)| (a.into(), b.into())));
    ended(&world.engine, &[("attempts_exhausted", 1)]);
    world.counted([1, 0, 0]);
    assert_eq!(peer.seen()[0].extensions.get::<HandOver>(), None);
}

#[tokio::test(start_paused = true)]
async fn hints_of_the_last_failure_are_submitted() {
    let mut world = World::new(enforce());
    let flagged = || {
        trailers_only(&[
            ("grpc-status", "14"),
            ("damper-no-more-retry", "1"),
            ("grpc-retry-pushback-ms", "-1"),
        ])
    };
    let patient = || trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "70000")]);
    for (reply, no_more_retry, seconds) in [(flagged(), true, -1), (patient(), false, 70)] {
        let mut service = world.to(&Peer::new([reply]));
        let (_, asked) = tokio::join!(call(&mut service, request()), world.plane.store());
        let failed = asked.jobs[0].failed.unwrap();
        assert_eq!((failed.no_more_retry, failed.pushback.unwrap().seconds), (no_more_retry, seconds));
        assert_eq!(asked.jobs[0].sends_before, 1);
    }
    world.counted([2, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn error_of_the_transport_carries_the_job() {
    let mut world = World::new(enforce());
    let broken = || Reply::Error("connection lost".into());
    let mut service = world.to(&Peer::new([broken(), broken(), broken()]));
    let (answer, _) = tokio::join!(call(&mut service, request()), world.plane.store());
    let status = answer.unwrap_err().downcast::<Status>().unwrap();
    assert!(handed_over(&status).is_some());
    // As tonic makes it of the error without a hand-over.
    let without = Status::from_error("connection lost".into());
    assert_eq!((status.code(), status.message()), (without.code(), without.message()));
    world.counted([1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn trailers_of_a_held_response_carry_the_job() {
    let mut world = World::of(holding(1_000));
    let mut service = world.to(&Peer::new([message_then("14"), message_then("14"), message_then("14")]));
    let (answer, _) = tokio::join!(call(&mut service, request()), world.plane.store());
    let answer = answer.unwrap();
    let trailers = answer.trailers.unwrap();
    assert!(job_in(&trailers).is_some() && trailers["grpc-status"] == "14", "{trailers:?}");
    assert_eq!(answer.data.len(), 2);
    // Without trailers nothing could carry it.
    let bare = || begun(ScriptedBody::over([data("\0\0\0\0\u{4}"), data("pong")]));
    call(&mut world.to(&Peer::new([bare(), bare(), bare()])), request()).await.unwrap();
    world.counted([1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn rejected_or_full_queue_changes_nothing() {
    let mut world = World::new(enforce());
    let mut plain = world.to(&down());
    let expected = error_of(&call(&mut plain, request_of(&[FRAMED])).await.unwrap());
    for response in [
        Ok(rejected(v1::Code::NotFound, "")),
        Ok(rejected(v1::Code::ResourceExhausted, "")),
        Err(Status::permission_denied("no")),
    ] {
        let mut service = world.to(&down());
        let (answer, ()) = tokio::join!(call(&mut service, request()), async {
            world.plane.submit().await.answer(response);
        });
        let answer = answer.unwrap();
        assert_eq!((error_of(&answer), job_in(&answer.headers)), (expected.clone(), None));
    }
    world.counted([0, 3, 0]);
}

#[tokio::test(start_paused = true)]
async fn existing_job_counts_unless_it_failed() {
    let mut world = World::new(enforce());
    for (state, counts) in [
        (v1::JobState::Leased, true),
        (v1::JobState::Done, true),
        (v1::JobState::Dead, false),
        (v1::JobState::Cancelled, false),
        (v1::JobState::Expired, false),
    ] {
        let mut service = world.to(&down());
        let (answer, ()) = tokio::join!(call(&mut service, request()), async {
            let asked = world.plane.submit().await;
            let mut response = stored(&asked);
            let job = &mut response.jobs[0];
            (job.existing, job.job_id, job.state) = (true, "cd".repeat(16), state.into());
            asked.answer(Ok(response));
        });
        let job = "cd".repeat(16);
        assert_eq!(job_in(&answer.unwrap().headers), counts.then_some(job.as_str()), "{state:?}");
    }
    world.counted([2, 3, 0]);
}

#[tokio::test(start_paused = true)]
async fn control_plane_away_costs_at_most_a_second() {
    let world = World::new(enforce());
    world.plane.refuse(usize::MAX);
    let (mut service, begun) = (world.to(&down()), Instant::now());
    let answer = call(&mut service, request()).await.unwrap();
    assert_eq!((answer.status(), job_in(&answer.headers)), ("14", None));
    // The attempts take 20 ms.
    assert!(begun.elapsed() <= ms(1_020), "{:?}", begun.elapsed());
    world.counted([0, 1, 0]);
    world.plane.refuse(0);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.queues.hand_overs().orphans, 0, "nothing was sent");
}

#[tokio::test(start_paused = true)]
async fn slow_control_plane_gives_the_job_until_the_limit() {
    let mut world = World::new(enforce());
    let mut plain = world.to(&down());
    let expected = error_of(&call(&mut plain, request_of(&[FRAMED])).await.unwrap());
    for (slow, is_kept) in [(0, true), (990, true), (1_010, false)] {
        let (mut service, begun) = (world.to(&down()), Instant::now());
        let (answer, ()) = tokio::join!(
            async {
                let answer = call(&mut service, request()).await.unwrap();
                // The attempts take 20 ms.
                assert!(begun.elapsed() <= ms(1_020), "{slow}: {:?}", begun.elapsed());
                answer
            },
            async {
                let asked = world.plane.submit().await;
                tokio::time::sleep(ms(slow)).await;
                let response = stored(&asked);
                asked.answer(Ok(response));
            }
        );
        assert_eq!((error_of(&answer), job_in(&answer.headers).is_some()), (expected.clone(), is_kept));
    }
    world.counted([2, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn late_job_is_sought_and_cancelled() {
    let mut world = World::new(enforce());
    let (mut service, begun) = (world.to(&down()), Instant::now());
    let (answer, asked) = tokio::join!(call(&mut service, request()), world.plane.submit());
    let answer = answer.unwrap();
    assert_eq!((answer.status(), job_in(&answer.headers)), ("14", None));
    assert_eq!(begun.elapsed(), ms(1_020));
    world.counted([0, 1, 0]);
    let id = crate::queue::jobs::hex(&asked.message.jobs[0].job_id);
    // The server has not stored it yet.
    for cancelled in [false, false, true] {
        let asked = world.plane.cancel().await.answer(Ok(v1::CancelJobResponse { cancelled }));
        assert_eq!(asked.job_id, id);
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(world.plane.cancels.try_recv().is_err(), "it was found");
    world.counted([0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn late_job_that_was_delivered_is_an_orphan() {
    let mut world = World::new(enforce());
    let mut service = world.to(&down());
    let (_, _asked) = tokio::join!(call(&mut service, request()), world.plane.submit());
    world.plane.cancel().await.answer(Err(Status::failed_precondition("delivered")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.counted([0, 1, 1]);
    assert!(world.plane.cancels.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_replaced() {
    let mut world = World::new(enforce());
    let mut service = world.to(&down());
    let (_, _asked) = tokio::join!(call(&mut service, request()), world.plane.submit());
    world.plane.cancel().await.answer(Ok(v1::CancelJobResponse { cancelled: true }));
    assert_eq!(world.plane.tried(), 2, "a dead connection would fail all later hand-overs");
    let mut service = world.to(&down());
    tokio::join!(call(&mut service, request()), world.plane.store()).0.unwrap();
    assert_eq!(world.plane.tried(), 2);
    world.counted([1, 1, 0]);
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn results_are_exported() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let mut world = World::new(enforce());
    let mut service = world.to(&down());
    tokio::join!(call(&mut service, request()), world.plane.store()).0.unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    crate::control::publish::publish(&world.engine).await;
    let all = snapshotter.snapshot().into_vec();
    let ours = all.iter().filter(|(key, ..)| key.key().name() == crate::metrics::HAND_OVERS);
    let ours: Vec<_> = ours.map(|(key, _, _, value)| (key.key().labels().next().unwrap(), value)).collect();
    let [(label, DebugValue::Counter(1))] = ours[..] else { panic!("{ours:?}") };
    assert_eq!((label.key(), label.value()), ("result", "accepted"));
}

#[tokio::test(start_paused = true)]
async fn job_is_sought_for_a_minute() {
    let mut world = World::new(enforce());
    let mut service = world.to(&down());
    let (_, _asked) = tokio::join!(call(&mut service, request()), world.plane.submit());
    let (begun, mut asked) = (Instant::now(), 0);
    while let Ok(Some(cancel)) = tokio::time::timeout(ms(60_000), world.plane.cancels.recv()).await {
        cancel.answer(Ok(v1::CancelJobResponse { cancelled: false }));
        asked += 1;
        assert!(begun.elapsed() <= ms(60_000));
    }
    assert!((5..60).contains(&asked), "{asked}");
    world.counted([0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_leaves_its_job() {
    let mut world = World::new(enforce());
    let mut service = world.to(&down());
    let mut calling = Box::pin(call(&mut service, request()));
    let asked = tokio::select! {
        _ = &mut calling => panic!("the queue has not answered"),
        asked = world.plane.submit() => asked,
    };
    drop(calling);
    let response = stored(&asked);
    asked.answer(Ok(response));
    tokio::time::sleep(Duration::from_secs(120)).await;
    world.counted([1, 0, 0]);
    assert!(world.plane.cancels.try_recv().is_err(), "it is not undone");
}

#[tokio::test(start_paused = true)]
async fn call_waits_until_shortly_before_its_deadline() {
    let mut world = World::new(enforce());
    let limited = |hand_over: HandOver, timeout: u64| {
        let mut request = wanted(hand_over);
        request.extensions_mut().insert(CallOptions::new().timeout(ms(timeout)));
        request
    };
    let to = || HandOver::to(QUEUE, "k");
    for (hand_over, timeout, took) in
        [(to(), 500, 490), (to(), 60_000, 1_020), (to().even_late(), 500, 1_020)]
    {
        let (mut service, begun) = (world.to(&down()), Instant::now());
        let (_, _asked) = tokio::join!(call(&mut service, limited(hand_over, timeout)), world.plane.submit());
        assert_eq!(begun.elapsed(), ms(took), "{timeout}");
    }
    // The call ends at its deadline: no time is left.
    let codes = damper_core::CodeSet::of(&[Code::DeadlineExceeded, Code::Unavailable]);
    let mut world = World::new(with_retry(|retry| retry.codes = codes));
    let mut service = world.to(&Peer::new([Reply::Hang]));
    let answer = call(&mut service, limited(to(), 500)).await.unwrap();
    assert_eq!((answer.status(), job_in(&answer.headers)), ("4", None));
    world.counted([0, 1, 0]);
    let mut service = world.to(&Peer::new([Reply::Hang]));
    let (answer, asked) =
        tokio::join!(call(&mut service, limited(to().even_late(), 500)), world.plane.store());
    let answer = answer.unwrap();
    assert_eq!((answer.status(), job_in(&answer.headers).is_some()), ("4", true));
    assert_eq!((asked.jobs[0].failed.unwrap().code, asked.jobs[0].sends_before), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn excluded_calls_are_not_handed_over() {
    let not_retryable = || trailers_only(&[("grpc-status", "3")]);
    let broken_off = || begun(ScriptedBody::over([data("world"), trailers(&[("grpc-status", "14")])]));
    let compressed = "\x01\0\0\0\x05hello";
    let two = "\0\0\0\0\x01a\0\0\0\0\x01b";
    let table: [(&str, Policy, Vec<Reply>, &'static str); 7] = [
        ("a code that is not retried", enforce(), vec![not_retryable()], FRAMED),
        ("a response that had begun", enforce(), vec![broken_off()], FRAMED),
        ("a success", enforce(), vec![ok()], FRAMED),
        ("observe mode", observe(), vec![unavailable()], FRAMED),
        ("a compressed message", enforce(), vec![unavailable(), unavailable(), unavailable()], compressed),
        ("two messages", enforce(), vec![unavailable(), unavailable(), unavailable()], two),
        ("too long to keep", Policy { replay_limit: 4, ..enforce() }, vec![unavailable()], FRAMED),
    ];
    for (case, policy, script, message) in table {
        let mut world = World::new(policy);
        let mut request = request_of(&[message]);
        request.extensions_mut().insert(HandOver::to(QUEUE, "k"));
        let answer = call(&mut world.to(&Peer::new(script)), request).await.unwrap();
        assert_eq!(job_in(&answer.headers), None, "{case}");
        assert!(world.plane.submits.try_recv().is_err(), "{case}");
        world.counted([0, 0, 0]);
    }
    let mut world = World::new(None);
    let answer = call(&mut world.to(&Peer::new([unavailable()])), request()).await.unwrap();
    assert_eq!(job_in(&answer.headers), None, "without a rule");
    assert!(world.plane.submits.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn request_without_the_extension_is_never_handed_over() {
    let mut world = World::new(enforce());
    call(&mut world.to(&down()), request_of(&[FRAMED])).await.unwrap();
    assert!(world.plane.submits.try_recv().is_err());
    world.counted([0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn retried_request_leaves_the_hand_over_to_the_layer_above() {
    let ignoring = Chain { ignore_retry_flag: true, ..Chain::default() };
    for (chain, fate) in [(Chain::default(), "chain_retry_flag"), (ignoring, "attempts_exhausted")] {
        let mut world = World::new(Policy { chain, ..enforce() });
        let context = Context::new(Some(1), None, world.engine.clock());
        context.scope(call(&mut world.to(&down()), request())).await.unwrap();
        ended(&world.engine, &[(fate, 1)]);
        assert!(world.plane.submits.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_call_in_flight_is_not_handed_over() {
    let mut world = World::new(enforce());
    let mut service = world.to(&Peer::new([Reply::Hang]));
    assert!(call(&mut service, request()).now_or_never().is_none());
    tokio::task::yield_now().await;
    ended(&world.engine, &[("cancelled", 1)]);
    assert!(world.plane.submits.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn call_that_is_sent_once_is_kept_for_its_job() {
    let mut world = World::new(enforce());
    let mut request = request();
    request.extensions_mut().insert(CallOptions::new().no_retries());
    let mut service = world.to(&Peer::new([unavailable()]));
    let (answer, asked) = tokio::join!(call(&mut service, request), world.plane.store());
    assert!(job_in(&answer.unwrap().headers).is_some());
    assert_eq!((&asked.jobs[0].body[..], asked.jobs[0].sends_before), (&b"hello"[..], 1));
}

#[tokio::test(start_paused = true)]
async fn only_an_accepted_call_marks_its_context() {
    let mut world = World::new(enforce());
    for accepted in [false, true] {
        let context = Context::new(None, None, world.engine.clock());
        let mut request = request();
        // Its own fate, policy_off, would not mark the context.
        request.extensions_mut().insert(CallOptions::new().no_retries());
        let mut service = world.to(&Peer::new([unavailable()]));
        let calling = context.clone().scope(call(&mut service, request));
        let (answer, ()) = tokio::join!(calling, async {
            let asked = world.plane.submit().await;
            let response = if accepted { stored(&asked) } else { rejected(v1::Code::NotFound, "") };
            asked.answer(Ok(response));
        });
        assert_eq!(context.chain().no_more_retry(Code::Unavailable), accepted);
        let status = Status::from_header_map(&answer.unwrap().headers).unwrap();
        assert_eq!(crate::record::report::fate(&status).unwrap().is_final(), accepted);
    }
}

#[tokio::test(start_paused = true)]
async fn marker_of_a_callee_is_removed() {
    let world = World::new(enforce());
    let forged = || trailers_only(&[("grpc-status", "14"), ("damper-job", "ab")]);
    for policy in [None, Some(enforce())] {
        let engine = engine(policy);
        let mut service = governed(&engine, Peer::new([forged(), forged(), forged()]));
        let answer = call(&mut service, request_of(&[FRAMED])).await.unwrap();
        assert_eq!(job_in(&answer.headers), None);
    }
    world.counted([0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn without_a_control_plane_the_hand_over_fails() {
    let engine = engine(enforce());
    let queues = Queues::off(&engine);
    let answer = call(&mut governed(&engine, down()), request()).await.unwrap();
    assert_eq!((answer.status(), job_in(&answer.headers)), ("14", None));
    assert_eq!(queues.hand_overs().failed, 1);
}

#[tokio::test(start_paused = true)]
async fn hand_overs_in_flight_are_bounded() {
    let world = World::new(Policy { replay_limit: 1 << 20, ..enforce() });
    let message: &'static str = Box::leak(format!("\0\0\x0c\0\0{}", "x".repeat(768 << 10)).into_boxed_str());
    let calling = |wait| {
        let (engine, mut request) = (Arc::clone(&world.engine), request_of(&[message]));
        request.extensions_mut().insert(HandOver::to(QUEUE, "k"));
        async move {
            tokio::time::sleep(ms(wait)).await;
            let begun = Instant::now();
            call(&mut governed(&engine, down()), request).await.unwrap();
            begun.elapsed()
        }
    };
    // The queue does not answer. 21 bodies of 768 KiB have a place, one more does not wait.
    let first = futures_util::future::join_all([0; 21].map(calling));
    let (first, last) = tokio::join!(first, calling(100));
    assert_eq!((first, last), (vec![ms(1_020); 21], ms(20)));
    world.counted([0, 22, 0]);
}

#[tokio::test(start_paused = true)]
async fn request_beyond_any_queue_is_not_sent() {
    let mut world = World::new(Policy { replay_limit: 1 << 20, ..enforce() });
    let message: &'static str =
        Box::leak(format!("\0\0\x0c\0\x01{}", "x".repeat((768 << 10) + 1)).into_boxed_str());
    let mut request = request_of(&[message]);
    request.extensions_mut().insert(HandOver::to(QUEUE, "k"));
    call(&mut world.to(&down()), request).await.unwrap();
    assert!(world.plane.submits.try_recv().is_err());
    world.counted([0, 1, 0]);
}
