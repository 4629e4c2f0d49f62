//! Metrics of a service as it has them: by its own `Damper`, under rules that came from a control plane, in
//! the recorder that its process installed.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not know as such")]

#[path = "control_plane/callee.rs"]
mod callee;
#[path = "control_plane/server.rs"]
#[allow(dead_code, reason = "it has more words than are needed here")]
mod server;

use std::time::Duration;

use damper_sdk::{Damper, metrics};
use metrics_util::CompositeKey;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::callee::{REPEAT, attempts, served};
use crate::server::{ControlPlane, rule, snapshot};

/// The value of the one series of this name that has these labels among others; none if there is no such one.
fn value(snapshotter: &Snapshotter, name: &str, labels: &[(&str, &str)]) -> Option<DebugValue> {
    let is_it = |key: &CompositeKey| {
        let has = |(label, value): &(&str, &str)| {
            key.key().labels().any(|has| has.key() == *label && has.value() == *value)
        };
        key.key().name() == name && labels.iter().all(has)
    };
    let mut found = snapshotter.snapshot().into_vec().into_iter().filter(|(key, ..)| is_it(key));
    let (_, _, _, value) = found.next()?;
    assert!(found.next().is_none(), "{name} {labels:?} is not one series");
    Some(value)
}

fn counter(snapshotter: &Snapshotter, name: &str, labels: &[(&str, &str)]) -> Option<u64> {
    match value(snapshotter, name, labels)? {
        DebugValue::Counter(value) => Some(value),
        other => panic!("{name} is {other:?}"),
    }
}

fn recorded(snapshotter: &Snapshotter, name: &str, labels: &[(&str, &str)]) -> usize {
    match value(snapshotter, name, labels) {
        Some(DebugValue::Histogram(values)) => values.len(),
        other => panic!("{name} is {other:?}"),
    }
}

/// A service under a rule for the callee `a`.
async fn connect(plane: &mut ControlPlane) -> (Damper, server::Stream) {
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    (damper, stream)
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_comes_after_connecting_gets_what_happens_every_five_seconds_and_the_rest_at_the_end()
{
    let mut plane = ControlPlane::start().await;
    let (damper, _stream) = connect(&mut plane).await;
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let snapshotter = recorder.snapshotter();
    assert_eq!(attempts(&damper, "a").await, 3);
    assert_eq!(served(&damper, 2, &[]).await, 2);
    assert_eq!(served(&damper, 1, REPEAT).await, 1);
    assert_eq!(recorded(&snapshotter, metrics::CALL_DURATION, &[("grpc.target", "a")]), 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let snapshot = snapshotter.snapshot().into_vec();
    let count = |name: &str, labels: &[(&str, &str)]| {
        let found = snapshot.iter().find(|(key, ..)| {
            let has = |(label, value): &(&str, &str)| {
                key.key().labels().any(|has| has.key() == *label && has.value() == *value)
            };
            key.key().name() == name && labels.iter().all(has)
        });
        found.map(|(_, _, _, value)| value)
    };
    let exhausted = [("grpc.method", "a.B/C"), ("grpc.target", "a"), ("fate", "attempts_exhausted")];
    assert_eq!(count(metrics::CALLS, &exhausted), Some(&DebugValue::Counter(1)));
    assert_eq!(count(metrics::RETRIES, &[("grpc.target", "a")]), Some(&DebugValue::Counter(2)));
    let by_damper = [("grpc.method", "a.B/Served"), ("source", "damper")];
    assert_eq!(count(metrics::SERVER_REPEATS, &by_damper), Some(&DebugValue::Counter(1)));
    assert_eq!(count(metrics::SERVER_FIRST_SENDS, &[]), Some(&DebugValue::Counter(2)));

    attempts(&damper, "a").await;
    damper.shutdown().await;
    assert_eq!(counter(&snapshotter, metrics::CALLS, &exhausted), Some(2));
}

#[tokio::test(start_paused = true)]
async fn histograms_are_per_route_where_a_service_asks_for_it() {
    let mut plane = ControlPlane::start().await;
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let snapshotter = recorder.snapshotter();
    let of_route = [("grpc.target", "a"), ("grpc.method", "a.B/C")];

    let (usual, _stream) = connect(&mut plane).await;
    attempts(&usual, "a").await;
    assert!(value(&snapshotter, metrics::ATTEMPT_DURATION, &of_route).is_none());

    let damper = Damper::connect(plane.options().histograms_per_route()).unwrap();
    plane.accept().await.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    attempts(&damper, "a").await;
    assert_eq!(recorded(&snapshotter, metrics::ATTEMPT_DURATION, &of_route), 3);
}
