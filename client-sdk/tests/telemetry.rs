//! Metrics of a service with its own `Damper`, under rules of a control plane, in the recorder of its
//! process.
#![allow(clippy::unwrap_used, reason = "test helpers, which clippy does not recognize")]

#[path = "control_plane/callee.rs"]
mod callee;
#[path = "control_plane/server.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod server;

use std::time::Duration;

use damper_sdk::balance::Targets;
use damper_sdk::{Damper, metrics};
use metrics_util::CompositeKey;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::callee::{REPEAT, attempts, served};
use crate::server::{ControlPlane, rule, snapshot};

/// Values recorded since the last call.
struct Recorded(Vec<(CompositeKey, DebugValue)>);

impl Recorded {
    fn of(recorder: &DebuggingRecorder) -> Self {
        let all = recorder.snapshotter().snapshot().into_vec().into_iter();
        Self(all.map(|(key, _, _, value)| (key, value)).collect())
    }

    /// Returns the only series of this name with these labels, among others; `None` without one.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<&DebugValue> {
        let mut found = self.0.iter().filter(|(key, _)| {
            let key = key.key();
            let has = |(label, value): &(&str, &str)| {
                key.labels().any(|has| has.key() == *label && has.value() == *value)
            };
            key.name() == name && labels.iter().all(has)
        });
        let (_, value) = found.next()?;
        assert!(found.next().is_none(), "{name} {labels:?} is not one series");
        Some(value)
    }

    #[track_caller]
    fn counted(&self, name: &str, labels: &[(&str, &str)], expected: u64) {
        assert_eq!(self.value(name, labels), Some(&DebugValue::Counter(expected)), "{name} {labels:?}");
    }

    /// Returns the number of values in a histogram.
    fn values(&self, name: &str, labels: &[(&str, &str)]) -> Option<usize> {
        match self.value(name, labels)? {
            DebugValue::Histogram(values) => Some(values.len()),
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// A service with a rule for the callee `a`.
async fn connect(plane: &mut ControlPlane) -> (Damper, server::Stream) {
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    (damper, stream)
}

#[tokio::test(start_paused = true)]
async fn a_late_recorder_gets_all_series_every_five_seconds() {
    let mut plane = ControlPlane::start().await;
    let (damper, _stream) = connect(&mut plane).await;
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    assert_eq!(attempts(&damper, "a").await, 3);
    assert_eq!(served(&damper, 2, &[]).await, 2);
    assert_eq!(served(&damper, 1, REPEAT).await, 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let recorded = Recorded::of(&recorder);
    let exhausted = [("grpc.method", "a.B/C"), ("grpc.target", "a"), ("fate", "attempts_exhausted")];
    recorded.counted(metrics::CALLS, &exhausted, 1);
    recorded.counted(metrics::RETRIES, &[("grpc.target", "a")], 2);
    recorded.counted(metrics::SERVER_REPEATS, &[("grpc.method", "a.B/Served"), ("source", "damper")], 1);
    recorded.counted(metrics::SERVER_FIRST_SENDS, &[("grpc.method", "a.B/Served")], 2);
    assert_eq!(recorded.values(metrics::CALL_DURATION, &[("grpc.target", "a")]), Some(1));

    attempts(&damper, "a").await;
    damper.shutdown().await;
    Recorded::of(&recorder).counted(metrics::CALLS, &exhausted, 2);
}

#[tokio::test(start_paused = true)]
async fn histograms_are_per_route_where_a_service_asks_for_it() {
    let mut plane = ControlPlane::start().await;
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let of_route = [("grpc.target", "a"), ("grpc.method", "a.B/C")];
    let attempts_timed = || Recorded::of(&recorder).values(metrics::ATTEMPT_DURATION, &of_route);

    let (usual, _stream) = connect(&mut plane).await;
    attempts(&usual, "a").await;
    assert_eq!(attempts_timed(), None);

    let detailed = Damper::connect(plane.options().histograms_per_route()).unwrap();
    plane.accept().await.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    attempts(&detailed, "a").await;
    assert_eq!(attempts_timed(), Some(3));
}

#[tokio::test]
async fn endpoints_of_a_callee_are_gauges() {
    let mut plane = ControlPlane::start().await;
    let (damper, _stream) = connect(&mut plane).await;
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let targets = Targets::new("http://callee").at([listener.local_addr().unwrap(), gone]);
    let (_reporter, health) = tonic_health::server::health_reporter();
    let serving = Server::builder().add_service(health);
    tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let channel = damper.client_layer("b").unwrap().layer(damper_sdk::balanced(targets).unwrap());
    let mut client = HealthClient::new(channel.clone());
    client.check(HealthCheckRequest::default()).await.unwrap();
    damper.shutdown().await;
    let recorded = Recorded::of(&recorder);
    let shown = |name, labels: &[_]| match recorded.value(name, labels) {
        Some(DebugValue::Gauge(value)) => value.into_inner(),
        other => panic!("{name} is {other:?}"),
    };
    for (state, expected) in [("connected", 1.0), ("not_connected", 1.0), ("ejected", 0.0)] {
        assert_eq!(shown(metrics::ENDPOINTS, &[("grpc.target", "b"), ("state", state)]), expected, "{state}");
    }
    assert_eq!(shown(metrics::ENDPOINT_CONNECTIONS, &[("grpc.target", "b")]), 1.0);
}
