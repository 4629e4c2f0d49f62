//! A service played by hand: it takes what it is sent and reports what it is told to.

use std::time::Duration;

use damper_core::latency;
use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::{self, client_message, server_message};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::harness::Serving;

/// For so long a service did what its first report says.
const BEFORE: Duration = Duration::from_secs(20);

/// A connected service; gone when it is dropped.
pub(crate) struct Reporting {
    _runtime: Runtime,
}

impl Reporting {
    /// Connects and reports every second: first what it did in the [`BEFORE`] that came before, then as much again
    /// for every such time, so that every window has the same rates however long a test takes.
    pub(crate) fn new(server: &Serving, service: &str, report: v1::Report) -> Self {
        let runtime = Runtime::new().unwrap();
        let hello = v1::Hello {
            identity: Some(v1::Identity {
                service: service.to_owned(),
                cluster: "default".to_owned(),
                instance: format!("{service}-1"),
            }),
            sdk_version: "0.1.0".to_owned(),
            features: damper_core::feature::ALL.iter().map(|feature| (*feature).to_owned()).collect(),
            source: v1::Source::Live.into(),
            serves: true,
            ..Default::default()
        };
        let report = v1::Report { source: v1::Source::Live.into(), ..report };
        runtime.spawn(live(server.address.clone(), hello, report));
        Self { _runtime: runtime }
    }
}

async fn live(address: String, hello: v1::Hello, report: v1::Report) {
    let said = |kind| v1::ClientMessage { kind: Some(kind) };
    let (requests, outgoing) = mpsc::channel(16);
    requests.send(said(client_message::Kind::Hello(hello))).await.unwrap();
    let mut client = DistributionClient::connect(address).await.unwrap();
    let mut responses = client.subscribe(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    let started = tokio::time::Instant::now();
    let mut due = tokio::time::interval(Duration::from_secs(1));
    loop {
        let message = tokio::select! {
            message = responses.message() => match message {
                Ok(Some(message)) => message,
                _ => return,
            },
            _ = due.tick() => {
                let report = said(client_message::Kind::Report(after(started.elapsed(), &report)));
                if requests.send(report).await.is_err() {
                    return;
                }
                continue;
            }
        };
        if matches!(&message.kind, Some(server_message::Kind::Snapshot(page)) if !page.last) {
            continue;
        }
        if message.nonce > 0 {
            let v1::ServerMessage { nonce, revision, .. } = message;
            let ack = v1::Ack { nonce, revision, refused: Vec::new() };
            if requests.send(said(client_message::Kind::Ack(ack))).await.is_err() {
                return;
            }
        }
    }
}

/// The report once so much time has passed.
fn after(passed: Duration, report: &v1::Report) -> v1::Report {
    let mut report = report.clone();
    let age = BEFORE + passed;
    let grow = |count: &mut u64| *count = *count * age.as_millis() as u64 / BEFORE.as_millis() as u64;
    for route in &mut report.routes {
        let v1::RouteReport { calls, attempts, retries, hedges, would_hedges, .. } = route;
        [calls, attempts, retries, hedges, would_hedges].into_iter().for_each(grow);
        [&mut route.outer_loop_calls, &mut route.no_context_calls].into_iter().for_each(grow);
        route.fates.iter_mut().for_each(|fate| grow(&mut fate.count));
        route.codes.iter_mut().for_each(|code| grow(&mut code.count));
        route.latency.iter_mut().for_each(|bucket| grow(&mut bucket.count));
    }
    for served in &mut report.served {
        let v1::ServedReport { first_sends, damper_repeats, grpc_repeats, envoy_repeats, .. } = served;
        [first_sends, damper_repeats, grpc_repeats, envoy_repeats].into_iter().for_each(grow);
        [&mut served.shed_repeats, &mut served.would_shed_repeats].into_iter().for_each(grow);
    }
    report.since = prost_types::Duration::try_from(age).ok();
    report
}

/// 20,000 calls of `checkout` to a method of `inventory`, a tenth of which failed, nearly all of 20 ms.
pub(crate) fn report(method: &str, change: impl FnOnce(&mut v1::RouteReport)) -> v1::Report {
    let bucket = |ms| u32::try_from(latency::bucket_of(Duration::from_millis(ms))).unwrap();
    let fate = |fate: v1::Fate, would, count| v1::FateCount { fate: fate.into(), would, count };
    let code = |code: v1::Code, count| v1::CodeCount { code: code.into(), count };
    let mut route = v1::RouteReport {
        callee_service: "inventory".to_owned(),
        callee_method: method.to_owned(),
        calls: 20_000,
        attempts: 20_000,
        fates: vec![
            fate(v1::Fate::Ok, false, 18_000),
            fate(v1::Fate::Retry, true, 1_800),
            fate(v1::Fate::RetryBreaker, true, 200),
        ],
        codes: vec![code(v1::Code::Ok, 18_000), code(v1::Code::Unavailable, 2_000)],
        latency: vec![
            v1::BucketCount { bucket: bucket(20), count: 19_900 },
            v1::BucketCount { bucket: bucket(300), count: 100 },
        ],
        ..Default::default()
    };
    change(&mut route);
    v1::Report { routes: vec![route], ..Default::default() }
}

/// Asks again and again until the answer is as it must become.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = std::time::Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "it did not happen: {what}");
    }
}
