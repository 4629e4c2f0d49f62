//! What the cases share: clients on raw streams and with the SDK, questions that are asked until their answer is so.

use std::future::Future;
use std::time::{Duration, Instant};

use damper_core::feature;
use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::{self, client_message, server_message};
use damper_tests::control_plane::ControlPlane;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// More than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const RULE: &str = "kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: stock, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }
";

/// Asks until there is an answer; tells what was seen last where none comes.
pub(crate) async fn until<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(seen) => assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}; seen: {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The answer where it holds.
pub(crate) fn so<T: std::fmt::Debug>(holds: bool, answer: T) -> Result<T, String> {
    if holds { Ok(answer) } else { Err(format!("{answer:?}")) }
}

/// A client that acknowledges whatever it is sent, and reports when it is told to.
pub(crate) struct Raw {
    say: mpsc::Sender<v1::ClientMessage>,
    /// Ends with what the goodbye said.
    pub(crate) reading: JoinHandle<Option<String>>,
}

impl Raw {
    /// Connects, and waits until it was sent something.
    pub(crate) async fn open(channel: Channel, service: &str, instance: &str) -> Self {
        let (say, said) = mpsc::channel(16);
        let identity = v1::Identity {
            service: service.to_owned(),
            cluster: "default".to_owned(),
            instance: instance.to_owned(),
        };
        let features = feature::ALL.iter().map(|&name| name.to_owned()).collect();
        let hello = v1::Hello { identity: Some(identity), features, ..v1::Hello::default() };
        let message = |kind| v1::ClientMessage { kind: Some(kind) };
        say.send(message(client_message::Kind::Hello(hello))).await.expect("the stream is open");
        let mut client = DistributionClient::new(channel);
        let mut heard =
            client.subscribe(ReceiverStream::new(said)).await.expect("a stream is opened").into_inner();
        let (first, is_there) = tokio::sync::oneshot::channel();
        let answer = say.clone();
        let reading = tokio::spawn(async move {
            let mut first = Some(first);
            while let Ok(Some(v1::ServerMessage { nonce, revision, kind, .. })) = heard.message().await {
                if let Some(server_message::Kind::Goodbye(v1::Goodbye { reason })) = kind {
                    return Some(reason);
                }
                if nonce > 0 {
                    let ack = v1::Ack { nonce, revision, refused: Vec::new() };
                    let _ = answer.send(message(client_message::Kind::Ack(ack))).await;
                }
                first.take().map(|first| first.send(()));
            }
            None
        });
        is_there.await.expect("it is sent something");
        Self { say, reading }
    }

    /// Says how many calls of `stock` there were in the last minute.
    pub(crate) async fn report(&self, calls: u64) {
        let fates = vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: calls }];
        let route = v1::RouteReport {
            callee_service: "stock".to_owned(),
            callee_method: "test.Hop/Call".to_owned(),
            calls,
            attempts: calls,
            fates,
            ..v1::RouteReport::default()
        };
        let since = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let report = v1::Report { routes: vec![route], since, ..v1::Report::default() };
        let kind = Some(client_message::Kind::Report(report));
        self.say.send(v1::ClientMessage { kind }).await.expect("the stream is open");
    }

    /// Leaves.
    pub(crate) fn leave(self) {
        self.reading.abort();
    }
}

/// Who is connected, as a replica knows it.
pub(crate) async fn clients(of: &ControlPlane) -> v1::ListClientsResponse {
    let listed = of.fleet().list_clients(v1::ListClientsRequest::default()).await;
    listed.expect("clients are listed").into_inner()
}

/// The routes, as a replica knows them.
pub(crate) async fn routes(of: &ControlPlane) -> v1::ListRoutesResponse {
    let listed = of.fleet().list_routes(v1::ListRoutesRequest::default()).await;
    listed.expect("routes are listed").into_inner()
}

/// All replicas, as one knows them.
pub(crate) async fn replicas(of: &ControlPlane) -> Vec<v1::Replica> {
    let listed = of.fleet().list_replicas(v1::ListReplicasRequest {}).await;
    listed.expect("replicas are listed").into_inner().replicas
}

/// A replica's own id.
pub(crate) async fn id(of: &ControlPlane) -> String {
    replicas(of).await.into_iter().find(|one| one.self_).expect("it knows itself").id
}

/// Waits until every replica hears every other.
pub(crate) async fn all_hear(all: &[&ControlPlane]) {
    for one in all {
        until("replicas hear each other", || async {
            let known = replicas(one).await;
            so(known.len() == all.len() && known.iter().all(|other| other.problem.is_empty()), known)
        })
        .await;
    }
}

/// Waits for the end of the question how far a revision has come.
pub(crate) async fn convergence(of: &ControlPlane, revision: u64, within: Duration) -> v1::Convergence {
    let request = v1::WatchConvergenceRequest {
        revision,
        share: None,
        within: prost_types::Duration::try_from(within).ok(),
    };
    let mut told = of.fleet().watch_convergence(request).await.expect("it is told").into_inner();
    let mut last = None;
    while let Some(state) = told.message().await.expect("the stream goes on") {
        last = Some(state);
    }
    last.expect("there is a last word")
}
