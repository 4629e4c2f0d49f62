//! Tokens over several replicas of one etcd: what one revokes ends on the others, and one of several that start at once
//! makes the first token.
#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

use std::path::Path;
use std::time::{Duration, Instant};

use damper_control_plane::{Auth, Server, ServerConfig};
use damper_proto::v1;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::tokens_client::TokensClient;
use damper_tests::etcd::Etcd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::codegen::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a stream may outlast its token.
const AT_MOST: Duration = Duration::from_secs(20);

struct Replica {
    channel: Channel,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.expect("it did not happen in time")
}

impl Replica {
    async fn start(store: &str, token_file: &Path) -> Self {
        let mut settings = ServerConfig::new(store.parse().unwrap());
        settings.listen.set_port(0);
        settings.auth = Auth::Tokens;
        settings.bootstrap_token_file = Some(token_file.to_owned());
        let server = soon(Server::bind(settings)).await.expect("the server starts");
        let url = format!("http://{}", server.local_addr());
        let channel = Channel::from_shared(url).unwrap().connect_lazy();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.expect("the server runs");
        });
        Self { channel, stop, running }
    }

    fn tokens(&self, token: &str) -> TokensClient<Shown> {
        TokensClient::new(self.shown(token))
    }

    fn shown(&self, token: &str) -> Shown {
        let value: tonic::metadata::MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        let show: Show = Box::new(move |mut request: Request<()>| {
            request.metadata_mut().insert("authorization", value.clone());
            Ok(request)
        });
        InterceptedService::new(self.channel.clone(), show)
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        soon(self.running).await.unwrap();
    }
}

type Show = Box<dyn FnMut(Request<()>) -> Result<Request<()>, Status> + Send + Sync>;
type Shown = InterceptedService<Channel, Show>;

fn store(etcd: &Etcd) -> String {
    format!("etcd://{}", etcd.endpoint().trim_start_matches("http://"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_one_replica_revokes_ends_streams_on_another() {
    let etcd = Etcd::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("first");
    let one = Replica::start(&store(&etcd), &file).await;
    let other = Replica::start(&store(&etcd), &folder.path().join("not needed")).await;
    assert!(!folder.path().join("not needed").exists());
    let admin = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let wanted = v1::CreateTokenRequest {
        name: "viewer".to_owned(),
        role: v1::Role::Viewer.into(),
        ..Default::default()
    };
    let made = soon(one.tokens(&admin).create_token(wanted)).await.unwrap().into_inner();
    let open = async || {
        let mut fleet = FleetClient::new(other.shown(&made.secret));
        loop {
            // The other replica learns of the token a moment later.
            match soon(fleet.watch(v1::WatchRequest::default())).await {
                Ok(watch) => return watch.into_inner(),
                Err(status) => assert_eq!(status.code(), Code::Unauthenticated, "{status:?}"),
            }
        }
    };
    let mut watch = soon(open()).await;
    soon(watch.message()).await.unwrap().unwrap();
    let id = made.token.unwrap().id;
    let request = v1::RevokeTokenRequest { id, options: None };
    soon(one.tokens(&admin).revoke_token(request)).await.unwrap();
    let since = Instant::now();
    let ended = loop {
        if let Err(status) = soon(watch.message()).await.map(|message| message.expect("it did not end well"))
        {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended:?}");
    let after = since.elapsed();
    assert!(after < AT_MOST, "{after:?}");
    println!("a stream on another replica outlasted its token by {after:?}");
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_replicas_that_start_at_once_one_makes_the_first_token() {
    let etcd = Etcd::start().await;
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3).map(|n| folder.path().join(format!("first-{n}"))).collect();
    let address = store(&etcd);
    let starting = files.iter().map(|file| Replica::start(&address, file));
    let replicas = futures_util::future::join_all(starting).await;
    let there: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    assert_eq!(there.len(), 1, "{there:?}");
    let admin = std::fs::read_to_string(there[0]).unwrap().trim().to_owned();
    for replica in &replicas {
        let listed = async {
            loop {
                match soon(replica.tokens(&admin).list_tokens(v1::ListTokensRequest {})).await {
                    Ok(listed) => return listed.into_inner().tokens,
                    Err(status) => assert_eq!(status.code(), Code::Unauthenticated, "{status:?}"),
                }
            }
        };
        assert_eq!(soon(listed).await.len(), 1);
    }
    for replica in replicas {
        replica.stop().await;
    }
}
