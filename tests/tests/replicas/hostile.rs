//! A replica that says what no replica can: it is left out, and nothing else suffers.

use std::net::SocketAddr;
use std::pin::Pin;

use damper_proto::v1;
use damper_proto::v1::replicas_server::{Replicas, ReplicasServer};
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use crate::world::{RULE, clients, convergence, replicas, routes, so, until};

const ID: &str = "false-1";

/// Answers every follower with the same messages, and then stays silent.
struct False;

#[tonic::async_trait]
impl Replicas for False {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<v1::FollowResponse, Status>> + Send>>;

    async fn follow(
        &self,
        request: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let first = request.into_inner().message().await?.expect("a first message");
        let head = v1::FollowResponse {
            replica: ID.to_owned(),
            version: "\u{1b}[2J".to_owned(),
            epoch: first.epoch,
            revision: u64::MAX,
            started_at: Some(prost_types::Timestamp { seconds: i64::MIN, nanos: -1 }),
            ..v1::FollowResponse::default()
        };
        let complete = v1::FollowResponse { complete: true, ..v1::FollowResponse::default() };
        let said = [head, nonsense(), nonsense(), complete].map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(said).chain(tokio_stream::pending()))))
    }
}

fn named(service: &str, instance: &str) -> Option<v1::Hello> {
    let identity = v1::Identity {
        service: service.to_owned(),
        cluster: "default".to_owned(),
        instance: instance.to_owned(),
    };
    Some(v1::Hello { identity: Some(identity), ..v1::Hello::default() })
}

/// One client that could be, with numbers that could not; everything else can not be at all.
fn nonsense() -> v1::FollowResponse {
    let out_of_time = Some(prost_types::Timestamp { seconds: i64::MIN, nanos: i32::MIN });
    let client = v1::FollowedClient {
        held: false,
        number: 1,
        hello: named("orders", "orders-1"),
        address: "nowhere".repeat(1000),
        connected_at: out_of_time,
        sent_revision: u64::MAX,
        acknowledged_revision: u64::MAX,
        behind_since: Some(prost_types::Timestamp { seconds: i64::MAX, nanos: i32::MAX }),
        refused: vec![v1::Refusal { revision: u64::MAX, ..v1::Refusal::default() }; 2000],
        source: i32::MIN,
        override_mode: i32::MAX,
        last_heard_at: out_of_time,
        connected_for: Some(prost_types::Duration { seconds: i64::MAX, nanos: 999_999_999 }),
        serves: true,
    };
    let other = |number, hello| v1::FollowedClient { number, hello, ..v1::FollowedClient::default() };
    let many = vec!["base".to_owned(); 100_000];
    let clients = vec![
        client,
        other(2, None),
        other(3, named("", "")),
        other(4, named("a\u{0}b", "x")),
        other(5, named(&"x".repeat(1 << 16), "x")),
        other(6, named("orders", "orders-2").map(|hello| v1::Hello { features: many, ..hello })),
        other(u64::MAX, Some(v1::Hello::default())),
    ];
    let route = |method: &str| v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: method.to_owned(),
        calls: u64::MAX,
        attempts: u64::MAX,
        fates: vec![v1::FateCount { fate: i32::MIN, would: true, count: u64::MAX }; 100],
        codes: vec![v1::CodeCount { code: i32::MAX, count: u64::MAX }],
        latency: vec![v1::BucketCount { bucket: u32::MAX, count: u64::MAX }],
        ..v1::RouteReport::default()
    };
    let report = v1::Report {
        routes: vec![route("p.S/M"), route("no method"), route("p.S/M")],
        since: Some(prost_types::Duration { seconds: i64::MAX, nanos: i32::MIN }),
        served: vec![v1::ServedReport {
            method: "\n".to_owned(),
            first_sends: u64::MAX,
            ..Default::default()
        }],
        ..v1::Report::default()
    };
    let reports =
        [(1, i64::MIN), (1, i64::MAX), (2, 0), (99, 0)].map(|(number, seconds)| v1::FollowedReport {
            number,
            report: Some(report.clone()),
            age: Some(prost_types::Duration { seconds, nanos: -1 }),
        });
    let nothing = v1::FollowedReport { number: 1, ..v1::FollowedReport::default() };
    let reports = reports.into_iter().chain([nothing]).collect();
    v1::FollowResponse { clients, reports, gone: vec![0, 77, u64::MAX], ..v1::FollowResponse::default() }
}

async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let served = tonic::transport::Server::builder()
        .add_service(ReplicasServer::new(False))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(served);
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_replica_can_say_is_left_out_and_counted() {
    let etcd = Etcd::start().await;
    let a = ControlPlane::on(&format!("etcd://{}", etcd.endpoint())).await;
    a.apply(RULE).await;
    let address = format!("http://{}", serve().await);
    let told = v1::Replica { id: ID.to_owned(), address, ..v1::Replica::default() };
    let mut client = etcd.client().await;
    // What nobody can follow is missing all the same, and does not keep others from being followed.
    client.put("/damper/replicas/unreadable", vec![0xff; 100], None).await.expect("it is put");
    client.put("/damper/replicas/bad%0Aname", vec![1, 2, 3], None).await.expect("it is put");
    client.put(format!("/damper/replicas/{ID}"), told.encode_to_vec(), None).await.expect("it is put");
    let listed = until("the one client that could be is there", || async {
        let listed = clients(&a).await;
        so(listed.clients.len() == 1 && listed.missing_replicas == ["unreadable"], listed)
    })
    .await;
    assert_eq!(listed.clients[0].replica, ID);
    assert_eq!(listed.clients[0].address, "");
    let names: Vec<_> = routes(&a).await.routes.into_iter().filter_map(|route| route.key).collect();
    assert_eq!(names.iter().map(|key| key.callee_method.as_str()).collect::<Vec<_>>(), ["p.S/M"]);
    a.fleet().diagnose(v1::DiagnoseRequest::default()).await.expect("a diagnosis");
    a.fleet().get_chain(v1::GetChainRequest::default()).await.expect("a chain");
    let revision = a.apply(&RULE.replace("max_attempts: 3", "max_attempts: 4")).await;
    let told = convergence(&a, revision, std::time::Duration::from_millis(300)).await;
    assert!(!told.done && told.missing_replicas.contains(&"unreadable".to_owned()), "{told:?}");
    client.delete("/damper/replicas/unreadable", None).await.expect("it is removed");
    until("it is forgotten", || async {
        let known = replicas(&a).await;
        so(known.iter().all(|one| one.id != "unreadable"), known)
    })
    .await;
    a.stop().await;
}
