use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::TcpListenerStream;
use v1::replicas_server::ReplicasServer;

use crate::cluster::peer_set::PeerSet;
use crate::cluster::*;
use crate::server::tasks::{OpenedServer, Tasks, start};
use damper_store::Members;
use damper_store::sled::SledStore;

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The inside of a server, without ports.
struct Inside {
    cluster: Arc<Cluster>,
    _tasks: Tasks,
    _folder: TempDir,
}

async fn inside() -> Inside {
    let folder = tempfile::tempdir().unwrap();
    let store = SledStore::open(folder.path()).await.unwrap();
    let (parts, tasks) = start(OpenedServer::for_test(Arc::new(store)).await);
    Inside { cluster: parts.cluster, _tasks: tasks, _folder: folder }
}

/// What a replica says of itself in the store.
fn entry(id: &str, address: &str) -> (String, Bytes) {
    let told = v1::Replica { id: id.to_owned(), address: address.to_owned(), ..v1::Replica::default() };
    (id.to_owned(), told.encode_to_vec().into())
}

fn known(entries: impl IntoIterator<Item = (String, Bytes)>) -> watch::Sender<Members> {
    watch::Sender::new(Arc::new(entries.into_iter().collect::<BTreeMap<_, _>>()))
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn others_are_missing_from_the_first_look_and_nobody_is_connected_to_after_leaving() {
    let inside = inside().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let known = known([entry("b", &address), ("c".to_owned(), Bytes::from_static(b"?"))]);
    let mut peers = PeerSet::of(inside.cluster.clone(), known.subscribe());
    peers.refresh();
    assert_eq!(inside.cluster.peers.missing(), ["b", "c"]);
    let following = tokio::spawn(peers.run());
    drop(timeout(PATIENCE, listener.accept()).await.expect("b is connected to").unwrap());
    drop(known);
    // Not in order, since nothing is stopping: a failure that ends the server.
    timeout(PATIENCE, following).await.expect("it ends").unwrap();
    while timeout(Duration::ZERO, listener.accept()).await.is_ok() {}
    let again = timeout(Duration::from_secs(2), listener.accept()).await;
    assert!(again.is_err(), "nobody connects any more");
}

#[tokio::test]
async fn a_replica_for_which_there_was_no_room_is_followed_when_another_one_goes() {
    let inside = inside().await;
    // Port 1 refuses at once.
    let all = || (0..65).map(|n| entry(&format!("r{n:02}"), "http://127.0.0.1:1"));
    let known = known(all());
    let mut peers = PeerSet::of(inside.cluster.clone(), known.subscribe());
    peers.refresh();
    let problem = || {
        let last = inside.cluster.peers.all_others().into_iter().find(|other| other.id == "r64");
        last.expect("it is known").problem
    };
    assert!(problem().contains("too many"), "{}", problem());
    let following = tokio::spawn(peers.run());
    known.send_replace(Arc::new(all().skip(1).collect()));
    until("the last one is followed", || !problem().contains("too many")).await;
    assert_eq!(inside.cluster.peers.missing().len(), 64);
    following.abort();
}

/// A replica that tells that it is there, and nothing more.
struct Mute {
    epoch: String,
}

#[tonic::async_trait]
impl v1::replicas_server::Replicas for Mute {
    type FollowStream = ReceiverStream<Result<v1::FollowResponse, Status>>;

    async fn follow(
        &self,
        request: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let (out, said) = mpsc::channel(1);
        let (replica, epoch) = ("b".to_owned(), self.epoch.clone());
        let first = v1::FollowResponse { replica, epoch, complete: true, ..Default::default() };
        tokio::spawn(async move {
            let mut inbound = request.into_inner();
            let _ = out.send(Ok(first)).await;
            while let Ok(Some(_)) = inbound.message().await {}
        });
        Ok(Response::new(ReceiverStream::new(said)))
    }
}

#[tokio::test]
async fn a_silent_replica_is_not_heard_however_often_it_is_told_something() {
    let inside = inside().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mute = ReplicasServer::new(Mute { epoch: inside.cluster.fleet.table().epoch().to_string() });
    let serving = tonic::transport::Server::builder().add_service(mute);
    let serving = tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let known = known([entry("b", &address)]);
    let mut peers = PeerSet::of(inside.cluster.clone(), known.subscribe());
    peers.refresh();
    let following = tokio::spawn(peers.run());
    until("it is heard", || inside.cluster.peers.missing().is_empty()).await;
    let begun = Instant::now();
    until("it is not heard any more", || {
        // Told to it, over and over.
        inside.cluster.fleet.hub.change_pace(|_| {});
        !inside.cluster.peers.missing().is_empty()
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_secs(4), "its silence was long: {:?}", begun.elapsed());
    following.abort();
    serving.abort();
}
