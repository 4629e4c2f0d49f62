//! A server on free ports, an operator, and services that use the wire protocol directly.

use std::future::Future;
use std::time::Duration;

use damper_control_plane::{ServeError, Server, ServerConfig, StoreUrl};
use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::guards_client::GuardsClient;
use damper_proto::v1::history_client::HistoryClient;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::queues_client::QueuesClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, client_message, server_message};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

const PATIENCE: Duration = Duration::from_secs(90);

/// Waits for an event; panics after the time limit.
pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.expect("it did not happen in time")
}

pub(crate) struct Running {
    pub(crate) url: String,
    pub(crate) address: std::net::SocketAddr,
    pub(crate) metrics: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ServeError>>,
    folder: TempDir,
}

pub(crate) async fn start() -> Running {
    start_with(|_| {}).await
}

pub(crate) async fn start_with(adjust: impl FnOnce(&mut ServerConfig)) -> Running {
    start_in(TempDir::new().unwrap(), adjust).await
}

pub(crate) fn settings_in(folder: &TempDir) -> ServerConfig {
    let store: StoreUrl = format!("sled:{}", folder.path().join("store").display()).parse().unwrap();
    let mut settings = ServerConfig::new(store);
    settings.listen.set_port(0);
    settings.metrics_listen = Some(settings.listen);
    // Tests of large sets and tables; that the defaults fit the manifests is tested where they live.
    settings.max_rules = 100_000;
    settings.max_guards = 10_000;
    settings.max_apply_bytes = 16 << 20;
    settings
}

pub(crate) async fn start_in(folder: TempDir, adjust: impl FnOnce(&mut ServerConfig)) -> Running {
    let mut settings = settings_in(&folder);
    adjust(&mut settings);
    let server = Server::bind(settings).await.unwrap();
    let address = server.local_addr();
    let metrics = server.metrics_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running { url: format!("http://{address}"), address, metrics, stop: Some(stop), task, folder }
}

impl Running {
    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from_shared(self.url.clone()).unwrap().connect_lazy()
    }

    pub(crate) fn rules(&self) -> RulesClient<Channel> {
        RulesClient::new(self.channel())
    }

    pub(crate) fn guards(&self) -> GuardsClient<Channel> {
        GuardsClient::new(self.channel())
    }

    pub(crate) fn history(&self) -> HistoryClient<Channel> {
        HistoryClient::new(self.channel())
    }

    pub(crate) fn kills(&self) -> KillsClient<Channel> {
        KillsClient::new(self.channel())
    }

    pub(crate) fn queues(&self) -> QueuesClient<Channel> {
        QueuesClient::new(self.channel())
    }

    pub(crate) fn fleet(&self) -> FleetClient<Channel> {
        FleetClient::new(self.channel())
    }

    pub(crate) fn tell_to_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Stops the server and returns the folder of its store.
    pub(crate) async fn stop(mut self) -> TempDir {
        if self.stop.is_some() {
            self.tell_to_stop();
        }
        soon(self.task).await.unwrap().unwrap();
        self.folder
    }

    pub(crate) async fn put(&self, rule: v1::Rule) -> v1::PutRuleResponse {
        let request = v1::PutRuleRequest { rule: Some(rule), ..Default::default() };
        soon(self.rules().put_rule(request)).await.unwrap().into_inner()
    }

    pub(crate) async fn delete(&self, key: v1::Pattern) -> u64 {
        let request = v1::DeleteRuleRequest { key: Some(key), ..Default::default() };
        soon(self.rules().delete_rule(request)).await.unwrap().into_inner().revision
    }

    /// Accepts the contents of the store, which this server knows.
    pub(crate) async fn accept_store(&self) -> v1::AcceptStoreResponse {
        let own = self.fleet().list_replicas(v1::ListReplicasRequest {}).await.unwrap().into_inner();
        let v1::Replica { epoch: found_epoch, revision: found_revision, .. } = own.replicas[0].clone();
        let options = Some(v1::WriteOptions { reason: "restored".to_owned(), ..Default::default() });
        let request = v1::AcceptStoreRequest { found_epoch, found_revision, options, ..Default::default() };
        self.history().accept_store(request).await.unwrap().into_inner()
    }

    pub(crate) async fn clients(&self) -> Vec<v1::Client> {
        soon(self.fleet().list_clients(v1::ListClientsRequest::default())).await.unwrap().into_inner().clients
    }

    /// Returns the first client once it meets the condition.
    pub(crate) async fn client_that(&self, is_so: impl Fn(&v1::Client) -> bool) -> v1::Client {
        soon(async {
            loop {
                if let Some(client) = self.clients().await.into_iter().find(|client| is_so(client)) {
                    return client;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Waits until no client is connected.
    pub(crate) async fn no_client_is_left(&self) {
        soon(async {
            while !self.clients().await.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(crate) async fn get(&self, address: std::net::SocketAddr, head: &str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

pub(crate) fn key(caller: &str, callee: &str, method: &str) -> v1::Pattern {
    v1::Pattern {
        caller_service: caller.to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: callee.to_owned(),
        callee_method: method.to_owned(),
    }
}

/// A rule that allows this many attempts.
pub(crate) fn rule(key: v1::Pattern, max_attempts: u32) -> v1::Rule {
    let policy = v1::Policy {
        mode: v1::Mode::Enforce.into(),
        retry: Some(v1::Retry { max_attempts: Some(max_attempts), ..Default::default() }),
        ..Default::default()
    };
    v1::Rule { key: Some(key), policy: Some(policy), ..Default::default() }
}

pub(crate) fn shop_rule(max_attempts: u32) -> v1::Rule {
    rule(key("shop", "stock", "stock.v1.Stock/Take"), max_attempts)
}

pub(crate) fn put_change(rule: v1::Rule) -> v1::ApplyRulesRequest {
    let change = v1::RuleChange { kind: Some(v1::rule_change::Kind::Put(rule)), expected_revision: None };
    v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(change)) }
}

pub(crate) fn header(options: v1::WriteOptions) -> v1::ApplyRulesRequest {
    v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Header(options)) }
}

pub(crate) fn hello(service: &str) -> v1::Hello {
    v1::Hello {
        identity: Some(v1::Identity {
            service: service.to_owned(),
            cluster: "default".to_owned(),
            instance: format!("{service}-1"),
        }),
        sdk_version: "0.1.0".to_owned(),
        features: damper_core::feature::ALL.iter().map(|feature| (*feature).to_owned()).collect(),
        ..Default::default()
    }
}

/// A service's end of a distribution stream.
pub(crate) struct Agent {
    pub(crate) requests: mpsc::Sender<v1::ClientMessage>,
    pub(crate) responses: Streaming<v1::ServerMessage>,
}

impl Agent {
    pub(crate) async fn connect(server: &Running, hello: v1::Hello) -> Self {
        Self::over(server.channel(), hello).await
    }

    pub(crate) async fn over(channel: Channel, hello: v1::Hello) -> Self {
        let (requests, outgoing) = mpsc::channel(16);
        requests.send(to_message(client_message::Kind::Hello(hello))).await.unwrap();
        let mut client = DistributionClient::new(channel);
        let responses = soon(client.subscribe(ReceiverStream::new(outgoing))).await.unwrap().into_inner();
        Self { requests, responses }
    }

    /// Returns the next message of any kind.
    pub(crate) async fn any(&mut self) -> Result<Option<v1::ServerMessage>, Status> {
        soon(self.responses.message()).await
    }

    /// Returns the next report interval, in seconds.
    pub(crate) async fn interval(&mut self) -> i64 {
        loop {
            let message = self.any().await.unwrap().expect("the stream goes on");
            if let Some(server_message::Kind::ReportSettings(settings)) = message.kind {
                return settings.interval.unwrap().seconds;
            }
        }
    }

    /// Returns the next message with rules.
    pub(crate) async fn next(&mut self) -> v1::ServerMessage {
        loop {
            let message = self.any().await.unwrap().expect("the stream goes on");
            if !matches!(message.kind, Some(server_message::Kind::ReportSettings(_))) {
                return message;
            }
        }
    }

    /// Returns the next response; skips bookmarks.
    pub(crate) async fn response(&mut self) -> v1::ServerMessage {
        loop {
            let message = self.next().await;
            if !matches!(message.kind, Some(server_message::Kind::Bookmark(_))) {
                return message;
            }
        }
    }

    pub(crate) async fn snapshot(&mut self) -> (v1::ServerMessage, Vec<v1::DistributedRule>) {
        let (message, rules, _) = self.whole_snapshot().await;
        (message, rules)
    }

    /// Returns the whole snapshot with its guards.
    pub(crate) async fn whole_snapshot(
        &mut self,
    ) -> (v1::ServerMessage, Vec<v1::DistributedRule>, Vec<v1::DistributedGuard>) {
        let (mut rules, mut guards) = (Vec::new(), Vec::new());
        loop {
            let message = self.response().await;
            let Some(server_message::Kind::Snapshot(page)) = &message.kind else {
                panic!("no snapshot: {message:?}");
            };
            rules.extend(page.rules.iter().cloned());
            guards.extend(page.guards.iter().cloned());
            if page.last {
                return (message, rules, guards);
            }
            assert_eq!(message.nonce, 0, "only the last page wants an answer");
        }
    }

    pub(crate) async fn delta(&mut self) -> (v1::ServerMessage, v1::Delta) {
        let message = self.response().await;
        match &message.kind {
            Some(server_message::Kind::Delta(delta)) => (message.clone(), delta.clone()),
            _ => panic!("no delta: {message:?}"),
        }
    }

    pub(crate) async fn ack(&self, message: &v1::ServerMessage, refused: Vec<v1::Refusal>) {
        let ack = v1::Ack { nonce: message.nonce, revision: message.revision, refused };
        self.requests.send(to_message(client_message::Kind::Ack(ack))).await.unwrap();
    }

    pub(crate) async fn report(&self, report: v1::Report) {
        self.requests.send(to_message(client_message::Kind::Report(report))).await.unwrap();
    }
}

pub(crate) fn to_message(kind: client_message::Kind) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}
