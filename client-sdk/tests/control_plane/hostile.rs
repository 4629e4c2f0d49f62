//! A misbehaving control plane: calls continue, the state held stays in force and bounded, and nothing
//! panics, so a process that aborts on panics is safe.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::Damper;

use crate::callee::{REPEAT, attempts, served};
use crate::server::*;

pub(crate) static PANICS: AtomicU32 = AtomicU32::new(0);

/// Counts all panics of the process from now on, except failed assertions of the test.
pub(crate) fn count_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let of_a_test = panic.location().is_some_and(|at| at.file().contains("control_plane/"));
            PANICS.fetch_add(u32::from(!of_a_test), Ordering::SeqCst);
            report(panic);
        }));
    });
}

/// A client with one rule for `a`, and two guards.
async fn ruled() -> (ControlPlane, Damper, Stream) {
    count_panics();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    let guards = vec![guard("a", 1, at_most(2)), guard("orders", 1, repeats(v1::Mode::Enforce, 1))];
    let ack = stream.exchange(7, 1, guarded(vec![rule("a", 1)], guards)).await;
    assert_eq!(ack.refused, []);
    (plane, damper, stream)
}

/// Checks that the previous state is still in force.
async fn unharmed(damper: &Damper) {
    assert_eq!((attempts(damper, "a").await, attempts(damper, "b").await), (2, 1));
    // Only the last ten seconds count, so at most one.
    assert!(served(damper, 3, REPEAT).await <= 1);
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "something panicked");
}

/// Checks that the client closes the stream and reconnects with the state that it held.
async fn left(plane: &mut ControlPlane, damper: &Damper) -> Stream {
    let stream = plane.accept().await;
    assert_eq!((stream.hello.epoch.as_str(), stream.hello.revision), ("e", 7));
    unharmed(damper).await;
    stream
}

/// A policy with every number out of range.
fn beyond(seconds: i64, nanos: i32, ratio: f64, count: u32) -> v1::Policy {
    let duration = Some(prost_types::Duration { seconds, nanos });
    let growth = v1::ExponentialBackoff {
        base: duration,
        multiplier: Some(ratio),
        max: duration,
        jitter: i32::MAX,
        jitter_share: Some(ratio),
        ..v1::ExponentialBackoff::default()
    };
    v1::Policy {
        mode: v1::Mode::Enforce.into(),
        timeout: duration,
        retry: Some(v1::Retry {
            max_attempts: Some(count),
            max_duration: duration,
            per_attempt_timeout: duration,
            codes: Some(v1::Codes {
                kind: Some(v1::codes::Kind::Deny(v1::CodeList {
                    codes: vec![i32::MIN, -1, 0, 17, i32::MAX],
                })),
            }),
            backoff: Some(v1::Backoff { kind: Some(v1::backoff::Kind::Exponential(growth)) }),
        }),
        retry_breaker: Some(v1::RetryBreaker {
            ratio: Some(ratio),
            buckets: Some(count),
            bucket_length: duration,
            min_failures: Some(count),
            min_samples: Some(count),
            ..v1::RetryBreaker::default()
        }),
        hedge: Some(v1::Hedge::default()),
        budget: Some(v1::Budget::default()),
        stop_when: Some(v1::StopWhen::default()),
        circuit_breaker: Some(v1::CircuitBreaker::default()),
        replay_limit_bytes: Some(count),
        ..v1::Policy::default()
    }
}

#[tokio::test(start_paused = true)]
async fn numbers_out_of_range_are_rejected_without_side_effects() {
    let (_plane, damper, mut stream) = ruled().await;
    let mut revision = 7;
    for (seconds, nanos) in [(i64::MAX, i32::MAX), (i64::MIN, i32::MIN), (-1, 1), (0, 0), (i64::MAX, 0)] {
        for ratio in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, -0.0, f64::MIN_POSITIVE] {
            for count in [0, u32::MAX] {
                revision += 1;
                let policy = beyond(seconds, nanos, ratio, count);
                let kind = Some(v1::distributed_rule::Kind::Policy(policy));
                let changed = vec![v1::DistributedRule { kind, ..rule("a", u64::MAX) }];
                let limit = v1::RepeatLimit { mode: 77, ratio: Some(ratio), min: Some(count) };
                let ceiling = v1::Ceiling {
                    max_attempts: Some(count),
                    hedge: i32::MIN,
                    max_retry_breaker_ratio: Some(ratio),
                    min_per_attempt_timeout: Some(prost_types::Duration { seconds, nanos }),
                    repeat_limit: Some(limit),
                    ..v1::Ceiling::default()
                };
                let changed_guards =
                    vec![guard("a", u64::MAX, ceiling), guard("orders", 8, ceiling_of(ratio))];
                let delta = v1::Delta { changed, changed_guards, ..v1::Delta::default() };
                let ack = stream.exchange(revision, revision, Kind::Delta(delta)).await;
                assert_eq!(ack.refused.len(), 3, "{ack:?}");
                assert!(ack.refused.iter().all(|refusal| refusal.reason.chars().count() <= 500));
            }
        }
    }
    unharmed(&damper).await;
}

fn ceiling_of(ratio: f64) -> v1::Ceiling {
    v1::Ceiling { max_retry_breaker_ratio: Some(ratio), ..v1::Ceiling::default() }
}

#[tokio::test(start_paused = true)]
async fn messages_with_nothing_in_them_are_refused_or_passed_over() {
    let (_plane, damper, mut stream) = ruled().await;
    let keyless = v1::DistributedRule { key: None, ..rule("x", 8) };
    let policyless = v1::DistributedRule { kind: None, ..rule("c", 8) };
    let modeless = v1::DistributedRule {
        kind: Some(v1::distributed_rule::Kind::Policy(v1::Policy::default())),
        ..rule("d", 8)
    };
    let needless = v1::DistributedRule {
        kind: Some(v1::distributed_rule::Kind::NeedsFeature(String::new())),
        ..rule("e", 8)
    };
    let delta = v1::Delta {
        changed: vec![v1::DistributedRule::default(), keyless, policyless, modeless, needless],
        removed: vec![v1::Pattern::default(), v1::Pattern::default()],
        changed_guards: vec![
            v1::DistributedGuard::default(),
            guard("c", 8, v1::Ceiling::default()),
            v1::DistributedGuard { ceiling: None, ..guard("d", 8, at_most(1)) },
        ],
        removed_guards: vec![v1::Pattern::default()],
    };
    let ack = stream.exchange(8, u64::MAX, Kind::Delta(delta)).await;
    assert_eq!(ack.refused.len(), 4 + 3, "{ack:?}");
    stream.say_nothing_known().await;
    stream.say(8, 0, Kind::ReportSettings(v1::ReportSettings::default())).await;
    stream.say(8, 0, Kind::Delta(v1::Delta::default())).await;
    stream.exchange(9, 3, Kind::Delta(v1::Delta::default())).await;
    unharmed(&damper).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_pattern_sent_twice_the_last_applies() {
    let (_plane, damper, mut stream) = ruled().await;
    let rules = vec![unknown_rule("a", 8), rule("a", 9), unknown_rule("a", 8)];
    let twice = vec![guard("a", 8, at_most(1)), guard("a", 9, at_most(2))];
    let limits = vec![guard("orders", 1, repeats(v1::Mode::Enforce, 1)); 2];
    let ack = stream.exchange(8, 2, guarded(rules, [twice, limits].concat())).await;
    assert_eq!(ack.refused.len(), 2);
    assert_eq!(damper.status().refused, 1, "the last version was invalid");
    unharmed(&damper).await;
}

#[tokio::test(start_paused = true)]
async fn a_lower_revision_is_ignored_and_the_highest_is_harmless() {
    let (_plane, damper, mut stream) = ruled().await;
    for (revision, nonce) in [(6, 2), (0, 3), (1, u64::MAX)] {
        let delta = v1::Delta { removed: vec![pattern("a")], ..v1::Delta::default() };
        assert_eq!(stream.exchange(revision, nonce, Kind::Delta(delta)).await.revision, 7);
        assert_eq!(
            stream.exchange(revision, nonce, guards_changed(vec![], &["a", "orders"])).await.revision,
            7
        );
        assert_eq!(stream.exchange(revision, nonce, snapshot(vec![])).await.revision, 7);
    }
    assert_eq!(stream.exchange(u64::MAX, 4, Kind::Bookmark(v1::Bookmark {})).await.revision, u64::MAX);
    assert_eq!(stream.exchange(8, 5, delta(vec![], &["a"])).await.revision, u64::MAX);
    unharmed(&damper).await;
}

#[tokio::test(start_paused = true)]
async fn pages_without_end_are_given_up_before_they_fill_the_memory() {
    let (mut plane, damper, stream) = ruled().await;
    // Messages of 2 bytes, which take a hundred times that in memory.
    let page =
        v1::Snapshot { rules: vec![v1::DistributedRule::default(); 20_000], ..v1::Snapshot::default() };
    let pages = async {
        let mut sent = 0;
        while stream.try_say(8, 0, Kind::Snapshot(page.clone())).await {
            sent += 1;
            assert!(sent < 200, "the client accepts endless pages");
        }
        drop(stream);
    };
    let (mut stream, ()) = tokio::join!(left(&mut plane, &damper), pages);
    let ack = stream.exchange(8, 1, delta(vec![rule("b", 8)], &[])).await;
    assert_eq!((ack.revision, attempts(&damper, "b").await), (8, 3), "updates continue");
}

#[tokio::test(start_paused = true)]
async fn a_message_longer_than_any_is_not_taken() {
    let (mut plane, damper, stream) = ruled().await;
    let callee_service = "x".repeat(5 << 20);
    let key = Some(v1::Pattern { callee_service, ..pattern("x") });
    stream.say(8, 1, delta(vec![v1::DistributedRule { key, ..rule("x", 8) }], &[])).await;
    let _stream = left(&mut plane, &damper).await;
}

#[tokio::test(start_paused = true)]
async fn long_texts_of_the_server_are_truncated() {
    let (mut plane, damper, stream) = ruled().await;
    let reason = "\u{fc}".repeat(1 << 20);
    stream.say(8, 0, Kind::Goodbye(v1::Goodbye { reason })).await;
    let stream = left(&mut plane, &damper).await;
    let problem = damper.status().last_problem.unwrap();
    assert!(problem.contains("goodbye") && problem.len() < 1200, "{} bytes", problem.len());
    stream.say_in(&"e".repeat(1 << 20), 9, 1, snapshot(vec![])).await;
    let _stream = left(&mut plane, &damper).await;
}

/// Invalid status details.
fn nonsense() -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    headers.insert("grpc-status-details-bin", http::HeaderValue::from_static("no base64!"));
    headers
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_with_invalid_details_is_reopened() {
    let (mut plane, damper, stream) = ruled().await;
    let details = tonic::metadata::MetadataMap::from_headers(nonsense());
    let status = tonic::Status::with_metadata(tonic::Code::Internal, "broken", details);
    stream.end_with(status).await;
    let _stream = left(&mut plane, &damper).await;
    let problem = damper.status().last_problem.unwrap();
    assert!(problem.contains("Internal: broken"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_responds_with_invalid_details_is_skipped() {
    count_panics();
    pace_the_clock();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The server has no such RPC and responds with invalid details.
    let spoiled = tower::util::MapResponseLayer::new(|mut answer: http::Response<tonic::body::Body>| {
        answer.headers_mut().extend(nonsense());
        answer
    });
    let (_, health) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().layer(spoiled).add_service(health);
    tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
    let damper = Damper::connect(options([url])).unwrap();
    let status = until(&damper, |status| status.last_problem.is_some()).await;
    assert!(status.last_problem.as_ref().unwrap().ends_with("(Unimplemented)"), "{status:?}");
    assert_eq!((attempts(&damper, "a").await, PANICS.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_named_up_to_what_fits_into_a_message() {
    let (mut plane, damper, mut stream) = ruled().await;
    let long = |i: usize| {
        let callee_service = format!("{i}{}", "x".repeat(300_000));
        v1::DistributedRule { key: Some(v1::Pattern { callee_service, ..pattern("x") }), ..rule("x", 8) }
    };
    let ack = stream.exchange(8, 2, delta((0..10).map(long).collect(), &[])).await;
    assert_eq!((ack.refused.len(), damper.status().refused), (2, 10));
    let many = (0..400).map(|i| unknown_rule(&format!("r{i}"), 9)).collect();
    assert_eq!(stream.exchange(9, 3, snapshot(many)).await.refused.len(), 300);
    drop(stream);
    assert_eq!(plane.accept().await.hello.refused.len(), 300);
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_long_table_applies_as_a_whole_while_calls_continue() {
    let (_plane, damper, stream) = ruled().await;
    let mut stream = stream;
    let page = |page: usize| {
        let rules = (0..5_000).map(|i| rule(&format!("r{page}-{i}"), 8)).collect();
        Kind::Snapshot(v1::Snapshot { rules, ..v1::Snapshot::default() })
    };
    for number in 0..4 {
        stream.say(8, 0, page(number)).await;
        assert_eq!(attempts(&damper, "a").await, 2, "nothing is in force before the last page");
    }
    let ack = stream.exchange(8, 1, snapshot(vec![rule("a", 8)])).await;
    assert_eq!((ack.revision, ack.refused), (8, vec![]));
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "r3-4999").await), (3, 3));
    assert_eq!(damper.status().rules, 20_001);
    stream.exchange(9, 2, delta(vec![], &["r3-4999"])).await;
    assert_eq!((attempts(&damper, "r3-4999").await, attempts(&damper, "r0-0").await), (1, 3));
    tokio::time::timeout(Duration::from_secs(120), damper.shutdown()).await.unwrap();
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}
