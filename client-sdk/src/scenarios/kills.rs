//! The kill switch and calls: waiting, in flight, rejected.

use std::sync::Arc;

use damper_core::kill::TimedKill;
use damper_core::{Hedge, HedgeDelay, Kill, MAX_ROUTES};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::peer::*;
use super::*;

/// A wait that only a kill ends.
const WAIT: Duration = Duration::from_secs(30);

fn waits_long() -> Policy {
    with_retry(|retry| retry.backoff = Backoff::Always(Waits::Fixed { delay: WAIT, jitter: Jitter::None }))
}

/// Returns a kill for this number of seconds.
fn kill(engine: &Runtime, method: &str, calls: bool, seconds: u64) -> TimedKill {
    let pattern = Pattern::parse("*", "*", "inventory", method).unwrap();
    let kill = Arc::new(Kill::new(pattern, calls, "the cellar is flooded".to_owned(), 1).unwrap());
    TimedKill { kill, until: engine.clock().now() + Duration::from_secs(seconds) }
}

fn stop_repeats(engine: &Runtime) {
    engine.obey(vec![kill(engine, "*", false, 60)]);
}

fn stop_calls(engine: &Runtime) {
    engine.obey(vec![kill(engine, "*", true, 60)]);
}

/// A call in its own task, 1 s after its start, when it waits.
async fn waiting(engine: &Arc<Runtime>, peer: &Peer) -> JoinHandle<Result<Answer, BoxError>> {
    let mut service = governed(engine, peer.clone());
    let waiting = tokio::spawn(async move { call(&mut service, request()).await });
    tokio::time::sleep(ms(1_000)).await;
    assert!(!waiting.is_finished());
    waiting
}

/// The call ends at once when retries are killed.
async fn ends_at_once(
    engine: &Runtime,
    waiting: JoinHandle<Result<Answer, BoxError>>,
) -> Result<Answer, BoxError> {
    let killed = Instant::now();
    stop_repeats(engine);
    let answer = waiting.await.unwrap();
    assert_eq!(killed.elapsed(), Duration::ZERO, "at once, not at the end of the wait");
    ended(engine, &[("killed", 1)]);
    answer
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_ends_at_once_with_its_last_error() {
    let last = || trailers_only(&[("grpc-status", "14"), ("grpc-message", "r%C3%A9seau"), ("x-app", "a")]);
    let (engine, peer) = (engine(waits_long()), Peer::new([unavailable(), last()]));
    let mut service = governed(&engine, peer.clone());
    let call = tokio::spawn(async move { call(&mut service, request()).await });
    // During the wait after the second attempt.
    tokio::time::sleep(WAIT + ms(1_000)).await;
    let mut answer = ends_at_once(&engine, call).await.unwrap();
    let Reply::With(sent) = last() else { unreachable!() };
    answer.headers.remove("damper-fate").unwrap();
    assert_eq!(answer.headers, *sent.headers());
    assert!(answer.trailers_only);
    assert_eq!(peer.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_with_the_error_of_the_inner_service() {
    let peer = Peer::new([Reply::Error("the cable is cut".into())]);
    let engine = engine(waits_long());
    let waiting = waiting(&engine, &peer).await;
    let error = ends_at_once(&engine, waiting).await.unwrap_err();
    assert_eq!(error.to_string(), "the cable is cut");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_with_the_answer_that_was_held() {
    let failed = [data("\0\0\0\0\u{4}"), data("pong"), trailers(&[("grpc-status", "14"), ("x-app", "a")])];
    let peer = Peer::new([begun(ScriptedBody::over(failed))]);
    let engine = Runtime::new("orders", "default");
    let policy = Policy { hold_unary: true, ..waits_long() };
    let pattern = Pattern::parse("*", "*", "*", METHOD.trim_start_matches('/')).unwrap();
    engine.apply(Table::from_iter([Arc::new(Rule::new(pattern, policy, 1).unwrap())]));
    let waiting = waiting(&engine, &peer).await;
    let answer = ends_at_once(&engine, waiting).await.unwrap();
    assert_eq!((answer.status(), answer.headers.get("x-served-by").is_some()), ("14", true));
    assert_eq!((answer.data.len(), answer.trailers.as_ref().unwrap().get("x-app").is_some()), (2, true));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_attempt_was_cut_ends_as_timed_out() {
    let policy = with_retry(|retry| {
        retry.backoff = Backoff::Always(Waits::Fixed { delay: WAIT, jitter: Jitter::None });
        retry.per_attempt_timeout = Some(ms(100));
        retry.codes = damper_core::CodeSet::of(&[damper_core::Code::DeadlineExceeded]);
    });
    let (engine, peer) = (engine(policy), Peer::new([Reply::Hang]));
    let waiting = waiting(&engine, &peer).await;
    assert_eq!(ends_at_once(&engine, waiting).await.unwrap().status(), "4");
}

#[tokio::test(start_paused = true)]
async fn an_open_stream_is_dropped_when_the_wait_begins() {
    let open = ScriptedBody::stalling([]);
    let mut response = Response::new(open);
    response.headers_mut().insert("grpc-status", http::HeaderValue::from_static("14"));
    let (engine, peer) = (engine(waits_long()), Peer::new([Reply::With(response)]));
    let waiting = waiting(&engine, &peer).await;
    assert!(peer.was_hung_up(), "the stream is reset when the wait begins");
    assert_eq!(ends_at_once(&engine, waiting).await.unwrap().status(), "14");
}

#[tokio::test(start_paused = true)]
async fn every_call_that_waits_ends_at_once() {
    let (engine, calls) = (engine(waits_long()), 1_000);
    let peer = Peer::new((0..calls).map(|_| unavailable()));
    let waiting: Vec<_> = (0..calls)
        .map(|_| {
            let mut service = governed(&engine, peer.clone());
            tokio::spawn(async move { call(&mut service, request()).await })
        })
        .collect();
    tokio::time::sleep(ms(1_000)).await;
    let killed = Instant::now();
    stop_repeats(&engine);
    for call in waiting {
        assert_eq!(call.await.unwrap().unwrap().status(), "14");
    }
    assert_eq!(killed.elapsed(), Duration::ZERO);
    ended(&engine, &[("killed", calls)]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_of_other_routes_lets_a_call_wait_on() {
    let (engine, peer) = (engine(waits_long()), Peer::new([unavailable(), ok()]));
    let began = Instant::now();
    let waiting = waiting(&engine, &peer).await;
    for _ in 0..3 {
        engine.obey(vec![kill(&engine, "inventory.v1.Inventory/Release", false, 60)]);
        tokio::task::yield_now().await;
    }
    assert_eq!(waiting.await.unwrap().unwrap().status(), "0");
    assert_eq!(began.elapsed(), WAIT);
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_expires_before_the_wait_has_no_effect() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), unavailable(), ok()]));
    engine.obey(vec![kill(&engine, "*", true, 2)]);
    let mut service = governed(&engine, peer.clone());
    tokio::time::sleep(ms(1_990)).await;
    assert_eq!(call(&mut service, request()).await.unwrap().status(), "14");
    tokio::time::sleep(ms(10)).await;
    assert_eq!(call(&mut service, request()).await.unwrap().status(), "0");
    assert_eq!(peer.seen().len(), 3, "it expires");
    ended(&engine, &[("ok_after_retry", 1), ("killed", 1)]);
}

#[tokio::test(start_paused = true)]
async fn attempts_in_flight_continue_without_further_hedges() {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 3 });
    let engine = engine(Policy { hedge, retry: None, ..enforce() });
    let peer = Peer::new([after(500, unavailable()), after(600, ok())]);
    let mut service = governed(&engine, peer.clone());
    let (answer, ()) = tokio::join!(call(&mut service, request()), async {
        tokio::time::sleep(ms(70)).await;
        stop_calls(&engine);
    });
    assert_eq!((answer.unwrap().status(), peer.seen().len()), ("0", 2));
    ended(&engine, &[("ok_by_hedge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn first_attempts_are_rejected_with_the_reason() {
    for policy in [None, Some(enforce()), Some(observe()), Some(Policy::new(Mode::Off))] {
        let (engine, peer) = (engine(policy), Peer::new([ok()]));
        stop_calls(&engine);
        tokio::time::sleep(ms(10_500)).await;
        let mut service = governed(&engine, peer.clone());
        let answer = call(&mut service, request()).await.unwrap();
        assert!(answer.trailers_only);
        assert_eq!(answer.status(), "14");
        assert_eq!(
            answer.headers["grpc-message"],
            "calls rejected by a kill switch; damper did not send the call; for another 50s: the cellar is flooded"
        );
        assert_eq!(peer.seen().len(), 0);
        engine.obey(vec![]);
        assert_eq!(call(&mut service, request()).await.unwrap().status(), "0");
        ended(&engine, &[("ok", 1), ("killed", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_override_takes_nothing_from_a_kill() {
    let (engine, peer) = (engine(enforce()), Peer::new([]));
    engine.limit_mode(Some(Mode::Off));
    stop_calls(&engine);
    assert_eq!(call(&mut governed(&engine, peer.clone()), request()).await.unwrap().status(), "14");
    assert_eq!(peer.seen().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_call_sets_the_flag_for_upstream_services() {
    let (engine, peer) = (engine(None), Peer::new([]));
    stop_calls(&engine);
    let inner = engine.clone();
    let handler = tower::service_fn(move |_: Request<Body>| {
        let mut service = governed(&inner, peer.clone());
        async move {
            let answer = call(&mut service, request()).await.unwrap();
            let mut response = Response::new(Body::empty());
            response.headers_mut().insert("grpc-status", answer.headers["grpc-status"].clone());
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut served = crate::server::ServerLayer::new(Arc::clone(&engine)).layer(handler);
    let response = served.call(request()).await.unwrap();
    assert_eq!(response.headers()["damper-no-more-retry"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_method_beyond_the_limit_is_rejected_alone() {
    let engine = engine(None);
    let callee = engine.callee("inventory").unwrap();
    for number in 0..MAX_ROUTES {
        engine.route(&callee, &format!("a.B/M{number}"));
    }
    let now = engine.clock().now();
    engine.obey(vec![kill(&engine, "inventory.v1.Inventory/Reserve", true, 60)]);
    let peer = Peer::new([ok()]);
    let mut service = governed(&engine, peer.clone());
    let refused = call(&mut service, request()).await.unwrap();
    assert_eq!((refused.status(), peer.seen().len()), ("14", 0));
    assert!(!engine.route(&callee, "inventory.v1.Inventory/Release").switch().refuses_calls(now));
    engine.obey(vec![kill(&engine, "*", true, 60)]);
    assert!(engine.route(&callee, "inventory.v1.Inventory/Release").switch().refuses_calls(now));
    assert!(engine.route(&callee, "a.B/M7").switch().refuses_calls(now));
    engine.obey(vec![]);
    assert_eq!(call(&mut service, request()).await.unwrap().status(), "0");
    ended(&engine, &[("ok", 1), ("killed", 1)]);
}

#[tokio::test(start_paused = true)]
async fn kills_apply_to_later_routes_and_not_to_other_callers() {
    let engine = engine(enforce());
    let of = |caller: &str, callee: &str| {
        let pattern = Pattern::parse(caller, "*", callee, "*").unwrap();
        let kill = Arc::new(Kill::new(pattern, true, "why".to_owned(), 1).unwrap());
        TimedKill { kill, until: engine.clock().now() + ms(60_000) }
    };
    engine.obey(vec![of("orders", "stock"), of("billing", "mail")]);
    let refuses = |callee: &str| {
        let callee = engine.callee(callee).unwrap();
        engine.route(&callee, "a.B/C").switch().refuses_calls(engine.clock().now())
    };
    assert_eq!((refuses("stock"), refuses("mail"), refuses("inventory")), (true, false, false));
    assert_eq!(engine.kills().in_force(engine.clock().now()).len(), 1);
    // A changed table does not affect a kill.
    engine.apply(Table::default());
    assert!(refuses("stock"));
}
