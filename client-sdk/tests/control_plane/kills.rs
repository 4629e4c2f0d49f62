//! Kills in responses: in force before the ack, also for waiting calls; expired by the client's own clock;
//! stored on disk; ignored if invalid.

use std::path::Path;
use std::time::Duration;

use damper_core::{Backoff, Jitter, Kill, Mode, Pattern, Policy, Retry, Waits};
use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::{Damper, Fate, Options, Source};
use http::{Request, Response};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::body::Body;
use tower::ServiceExt as _;

use crate::callee::attempts;
use crate::server::*;

const WAIT: Duration = Duration::from_secs(30);

fn of(callee: &str) -> Option<v1::Pattern> {
    Some((&Pattern::parse("*", "*", callee, "*").unwrap()).into())
}

fn kill(callee: &str, calls: bool, seconds: i64) -> v1::ActiveKill {
    v1::ActiveKill {
        key: of(callee),
        revision: 8,
        calls,
        reason: "the cellar is flooded".to_owned(),
        remaining: Some(prost_types::Duration { seconds, nanos: 0 }),
        expires_at: Some(std::time::SystemTime::UNIX_EPOCH.into()),
    }
}

/// A rule under which a failed call waits for 30 s.
fn waits_long(callee: &str) -> v1::DistributedRule {
    let backoff = Backoff::Always(Waits::Fixed { delay: WAIT, jitter: Jitter::None });
    let retry = Some(Retry { backoff, ..Retry::default() });
    let policy = Policy { retry, retry_breaker: None, ..Policy::new(Mode::Enforce) };
    let kind = Some(v1::distributed_rule::Kind::Policy((&policy).into()));
    v1::DistributedRule { key: Some(pattern(callee)), revision: 1, kind }
}

async fn connected(options: impl FnOnce(Options) -> Options) -> (ControlPlane, Damper, Stream) {
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(options(plane.options())).unwrap();
    let mut stream = plane.accept().await;
    let rules = vec![rule("a", 1), rule("b", 1), waits_long("slow")];
    stream.exchange(7, 1, snapshot(rules)).await;
    (plane, damper, stream)
}

/// Starts a call to `slow` whose first attempt has failed; returns it with a receiver of its attempts.
async fn waiting(damper: &Damper) -> (JoinHandle<Response<()>>, mpsc::Receiver<()>) {
    let (tell, mut attempts) = mpsc::channel(8);
    let failing = tower::service_fn(move |_: Request<Body>| {
        tell.try_send(()).unwrap();
        let answer = Response::builder().header("grpc-status", "14").header("x-app", "its own");
        std::future::ready(Ok::<_, std::convert::Infallible>(answer.body(Body::empty()).unwrap()))
    });
    let service = damper.client_layer("slow").unwrap().layer(failing);
    let request = Request::post("http://slow/a.B/C").body(Body::empty()).unwrap();
    let call = tokio::spawn(async move { service.oneshot(request).await.unwrap().map(drop) });
    soon(attempts.recv()).await.unwrap();
    (call, attempts)
}

fn ended(damper: &Damper, callee: &str, fate: Fate) -> u64 {
    let mut count = 0;
    damper.for_each_route(|name, _, counters| {
        if name == callee {
            count += counters.ended(damper_sdk::Ending::real(fate));
        }
    });
    count
}

/// The kills in force, as a health page lists them.
fn shown(damper: &Damper) -> Vec<(String, Duration)> {
    let mut shown = Vec::new();
    damper.for_each_kill(|kill: &Kill, left| shown.push((kill.pattern().callee_service.to_string(), left)));
    shown.sort();
    shown
}

#[tokio::test]
async fn a_kill_ends_a_backoff_of_30_s_at_once() {
    let (_plane, damper, mut stream) = connected(|options| options).await;
    let (call, mut attempts_of_it) = waiting(&damper).await;
    let began = Instant::now();
    let ack = stream.exchange_killing(8, 2, delta(vec![], &[]), vec![kill("slow", false, 60)]).await;
    assert_eq!((ack.revision, ack.refused), (8, vec![]));
    let answer = soon(call).await.unwrap();
    assert!(began.elapsed() < WAIT / 2, "{:?}", began.elapsed());
    let header = |name: &str| answer.headers()[name].to_str().unwrap();
    assert_eq!((header("grpc-status"), header("x-app")), ("14", "its own"));
    assert!(attempts_of_it.recv().await.is_none(), "no second attempt");
    assert_eq!(ended(&damper, "slow", Fate::Killed), 1);
    assert_eq!((attempts(&damper, "slow").await, attempts(&damper, "a").await), (1, 3));
    assert_eq!(damper.status().kills, 1);
}

#[tokio::test(start_paused = true)]
async fn a_kill_with_any_response_is_in_force_before_the_ack() {
    let (_plane, damper, mut stream) = connected(|options| options).await;
    let responses = [delta(vec![], &[]), Kind::Bookmark(v1::Bookmark {}), snapshot(vec![rule("a", 1)])];
    for (revision, response) in (10..).step_by(10).zip(responses) {
        stream.exchange_killing(revision, revision, response, vec![kill("a", false, 60)]).await;
        assert_eq!(attempts(&damper, "a").await, 1);
        // Absent: unchanged.
        stream.exchange(revision + 1, revision + 1, delta(vec![rule("c", 9)], &[])).await;
        assert_eq!((attempts(&damper, "a").await, attempts(&damper, "c").await), (1, 3));
        stream.exchange_killing(revision + 2, revision + 2, delta(vec![], &[]), vec![]).await;
        assert_eq!((attempts(&damper, "a").await, damper.status().kills), (3, 0));
    }
}

#[tokio::test]
async fn a_kill_with_a_page_applies_before_the_rest() {
    let (_plane, damper, mut stream) = connected(|options| options).await;
    let (call, _attempts) = waiting(&damper).await;
    let page = |last| Kind::Snapshot(v1::Snapshot { last, ..Default::default() });
    stream.say_killing(8, 0, page(false), vec![kill("slow", false, 60)]).await;
    soon(call).await.unwrap();
    assert_eq!((ended(&damper, "slow", Fate::Killed), damper.status().rules), (1, 3));
    stream.exchange(8, 2, page(true)).await;
    assert_eq!((damper.status().kills, damper.status().rules), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn first_attempts_without_a_rule_are_rejected_by_a_kill() {
    let (_plane, damper, mut stream) = connected(|options| options).await;
    let kills = vec![kill("a", true, 60), kill("unruled", true, 60)];
    stream.exchange_killing(8, 2, delta(vec![], &[]), kills).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "unruled").await), (0, 0));
    assert_eq!(attempts(&damper, "b").await, 3);
    assert_eq!((ended(&damper, "a", Fate::Killed), ended(&damper, "unruled", Fate::Killed)), (1, 1));
    stream.exchange_killing(9, 3, delta(vec![], &[]), vec![kill("unruled", true, 60)]).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "unruled").await), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_kill_expires_without_a_control_plane() {
    let (plane, damper, mut stream) = connected(|options| options).await;
    let sent = Instant::now();
    stream.exchange_killing(8, 2, delta(vec![], &[]), vec![kill("a", false, 20), kill("b", true, 40)]).await;
    let arrived = Instant::now();
    drop(stream);
    plane.kill().await;
    until(&damper, |status| !status.connected).await;
    let mut over = Vec::new();
    for (callee, seconds) in [("a", 20), ("b", 40)] {
        while attempts(&damper, callee).await < 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let due = Duration::from_secs(seconds);
        let (at_most, at_least) = (sent.elapsed(), arrived.elapsed());
        assert!(at_most >= due && at_least < due + Duration::from_secs(10), "{callee}: {at_least:?}");
        over.push(damper.status().kills);
    }
    assert_eq!(over, [1, 0]);
}

/// A state folder of a process that ended under these kills.
async fn kept(kills: Vec<v1::ActiveKill>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (_plane, damper, mut stream) = connected(|options| options.state_dir(folder.path())).await;
    stream.exchange_killing(8, 2, delta(vec![], &[]), kills).await;
    drop(stream);
    damper.shutdown().await;
    folder
}

async fn restarted(folder: &Path) -> Damper {
    let damper = Damper::connect(options(["http://127.0.0.1:1".to_owned()]).state_dir(folder)).unwrap();
    until(&damper, |status| status.source == Source::LastKnownGood).await;
    damper
}

#[tokio::test]
async fn a_restarted_process_applies_a_kill_for_its_time_left() {
    let folder = kept(vec![kill("a", false, 3600), kill("b", true, 3600), kill("slow", true, 0)]).await;
    let damper = restarted(folder.path()).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (1, 0));
    let shown = shown(&damper);
    let callees: Vec<_> = shown.iter().map(|(callee, _)| callee.as_str()).collect();
    assert_eq!(callees, ["a", "b"], "expired kills are not stored");
    let hour = Duration::from_secs(3600);
    assert!(shown.iter().all(|(_, left)| *left <= hour && *left > hour - PATIENCE), "{shown:?}");
    assert_eq!(damper.status().kills, 2);
}

#[tokio::test]
async fn a_kill_that_expires_during_a_restart_is_gone() {
    let folder = kept(vec![kill("a", false, 1), kill("b", false, 3600)]).await;
    // The wall clock decides and cannot be moved. Counted from here, the kill has expired for certain.
    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1_050))).await.unwrap();
    let damper = restarted(folder.path()).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (3, 1));
}

#[tokio::test]
async fn a_restarted_process_drops_kills_that_were_ended() {
    let folder = kept(vec![kill("a", true, 3600)]).await;
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
    let mut stream = plane.accept().await;
    assert_eq!(attempts(&damper, "a").await, 0);
    stream.exchange_killing(9, 1, Kind::Bookmark(v1::Bookmark {}), vec![]).await;
    assert_eq!(attempts(&damper, "a").await, 3);
    drop(stream);
    damper.shutdown().await;
    let again = restarted(folder.path()).await;
    assert_eq!(attempts(&again, "a").await, 3, "the state file is updated too");
}

#[tokio::test]
async fn invalid_kills_are_rejected_by_name() {
    let (_plane, damper, mut stream) = connected(|options| options).await;
    let whole = kill("a", false, 60);
    let remaining = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    let hostile = [
        v1::ActiveKill::default(),
        v1::ActiveKill { remaining: remaining(i64::MAX, i32::MAX), ..kill("x", true, 0) },
        v1::ActiveKill { remaining: remaining(i64::MIN, i32::MIN), ..kill("x", true, 0) },
        v1::ActiveKill { remaining: remaining(86_400, 1), ..kill("x", true, 0) },
        v1::ActiveKill { remaining: None, ..kill("b", true, 0) },
        v1::ActiveKill { reason: String::new(), ..kill("b", true, 60) },
        v1::ActiveKill { reason: "x".repeat(1 << 20), ..kill("b", true, 60) },
        v1::ActiveKill { key: Some(v1::Pattern::default()), ..kill("b", true, 60) },
        v1::ActiveKill {
            expires_at: Some(prost_types::Timestamp { seconds: i64::MIN, nanos: i32::MIN }),
            ..kill("b", true, 60)
        },
    ];
    let count = hostile.len();
    let kills = hostile.into_iter().chain([whole]).collect();
    let ack = stream.exchange_killing(8, 2, delta(vec![], &[]), kills).await;
    assert_eq!(ack.refused.len(), count);
    assert!(ack.refused.iter().all(|refusal| refusal.kill && !refusal.reason.is_empty()));
    assert!(ack.refused.iter().all(|refusal| refusal.reason.len() <= 2_000), "a reason is short");
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (1, 3));
    let status = damper.status();
    assert_eq!((status.kills, status.refused), (1, count));
}

#[tokio::test]
async fn too_many_kills_end_the_stream_and_change_nothing() {
    let (mut plane, damper, mut stream) = connected(|options| options).await;
    stream.exchange_killing(8, 2, delta(vec![], &[]), vec![kill("a", false, 60)]).await;
    let many = (0..=damper_core::kill::MAX_KILLS).map(|n| kill(&format!("k{n}"), true, 60)).collect();
    stream.say_killing(9, 3, delta(vec![rule("c", 9)], &[]), many).await;
    let next = plane.accept().await;
    assert_eq!(next.hello.revision, 8);
    assert_eq!(
        (attempts(&damper, "a").await, attempts(&damper, "c").await, damper.status().kills),
        (1, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_report_contains_changed_gates_of_a_route() {
    let (_plane, damper, mut stream) = connected(|options| options).await;
    attempts(&damper, "a").await;
    attempts(&damper, "without-rule").await;
    let report = stream.report().await;
    let state = |report: &v1::Report, callee: &str| {
        let route = report.routes.iter().find(|route| route.callee_service == callee).unwrap();
        route.state
    };
    assert_eq!(state(&report, "without-rule"), None);
    assert_eq!(state(&report, "a"), Some(v1::RouteState { window_failures: 3, ..v1::RouteState::default() }));
    stream.exchange_killing(8, 2, delta(vec![], &[]), vec![kill("*", false, 20)]).await;
    let report = stream.report().await;
    assert!(state(&report, "a").unwrap().killed && state(&report, "without-rule").unwrap().killed);
    // The window empties and the kill ends: each is reported, and nothing after that.
    let mut last = report;
    while state(&last, "a") != Some(v1::RouteState::default()) {
        last = stream.report().await;
    }
    stream.say(9, 0, Kind::Bookmark(v1::Bookmark {})).await;
    let quiet = tokio::time::timeout(Duration::from_secs(20), stream.hear()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}
