//! A control plane for one test: the server library on a port of its own, with sled in a temporary folder or on a
//! store that the test has.

use std::time::{Duration, Instant};

use damper_control_plane::{Rate, Server, ServerConfig, StartError};
use damper_proto::manifest;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::guards_client::GuardsClient;
use damper_proto::v1::history_client::HistoryClient;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, apply_rules_request, rule_change};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Channel;

/// How long processes may take to start and to acknowledge the rules.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(60);

/// A running control plane; stops when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    url: String,
    channel: Channel,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
    folder: Option<tempfile::TempDir>,
}

impl ControlPlane {
    /// Starts one on a free port of loopback.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = format!("sled:{}", folder.path().join("store").display());
        Self { folder: Some(folder), ..Self::on(&store).await }
    }

    /// Starts one on a store, `sled:PATH` or `etcd://HOST:PORT`; each is a replica of its own.
    pub async fn on(store: &str) -> Self {
        let store = store.parse().expect("a store's address");
        Self::with(ServerConfig::new(store)).await
    }

    /// Starts one with these settings, on a free port of loopback.
    pub async fn with(settings: ServerConfig) -> Self {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let mut settings = ServerConfig { listen, ..settings };
        // Tests write as fast as they can; that there is a limit is tested where it lives.
        settings.limits.writes = Rate::UNLIMITED;
        settings.limits.max_open_requests_per_identity = 10_000;
        let server = bind(settings).await.expect("the server starts");
        let url = format!("http://{}", server.local_addr());
        let channel = Channel::from_shared(url.clone()).expect("a URL").connect_lazy();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.expect("the server runs");
        });
        Self { url, channel, stop: Some(stop), running, folder: None }
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A channel to it.
    pub async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(self.url.clone()).expect("a URL");
        endpoint.connect().await.expect("the server is there")
    }

    /// Waits until a process of each of these services has acknowledged the rules.
    pub async fn acknowledged_by(&self, services: &[impl AsRef<str>]) {
        let mut fleet = self.fleet();
        let acknowledged = async {
            loop {
                let listed = fleet.list_clients(v1::ListClientsRequest::default()).await;
                let listed = listed.expect("the control plane answers").into_inner();
                let is_current = |service: &str| {
                    listed.clients.iter().any(|client| {
                        client.identity.as_ref().is_some_and(|identity| identity.service == service)
                            && client.acknowledged_revision >= listed.revision
                    })
                };
                if services.iter().all(|service| is_current(service.as_ref())) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(ACKNOWLEDGED_WITHIN, acknowledged)
            .await
            .expect("the services acknowledge the rules");
    }

    /// Its rules.
    pub fn rules(&self) -> RulesClient<Channel> {
        RulesClient::new(self.channel.clone())
    }

    /// Its guards.
    pub fn guards(&self) -> GuardsClient<Channel> {
        GuardsClient::new(self.channel.clone())
    }

    /// Its history.
    pub fn history(&self) -> HistoryClient<Channel> {
        HistoryClient::new(self.channel.clone())
    }

    /// Its kills.
    pub fn kills(&self) -> KillsClient<Channel> {
        KillsClient::new(self.channel.clone())
    }

    /// Who is connected to it, and how calls go.
    pub fn fleet(&self) -> FleetClient<Channel> {
        FleetClient::new(self.channel.clone())
    }

    /// Puts the rules and guards of a manifest, all or none, and answers with the revision.
    pub async fn apply(&self, yaml: &str) -> u64 {
        let options = v1::WriteOptions { author: "test".to_owned(), ..v1::WriteOptions::default() };
        self.write(options, puts(yaml)).await.expect("the rules are good").revision
    }

    /// Makes changes to rules and guards, all or none.
    pub async fn write(
        &self,
        options: v1::WriteOptions,
        changes: impl IntoIterator<Item = rule_change::Kind>,
    ) -> Result<v1::ApplyRulesResponse, Status> {
        let change = |kind| v1::RuleChange { kind: Some(kind), expected_revision: None };
        let changes = changes.into_iter().map(change).map(apply_rules_request::Kind::Change);
        let messages = std::iter::once(apply_rules_request::Kind::Header(options)).chain(changes);
        let messages = messages.map(|kind| v1::ApplyRulesRequest { kind: Some(kind) });
        let stream = tokio_stream::iter(messages.collect::<Vec<_>>());
        self.rules().apply_rules(stream).await.map(tonic::Response::into_inner)
    }

    /// Stops it and waits until it is gone.
    pub async fn stop(self) {
        let Self { channel, stop, running, folder, .. } = self;
        drop((channel, stop));
        // With a thousand streams on a busy machine.
        let within = Duration::from_secs(60);
        tokio::time::timeout(within, running).await.expect("it stops").expect("without a panic");
        drop(folder);
    }
}

/// Binds a server. A store that this process has just closed is locked until its last writes are on the disk.
///
/// # Errors
/// All but the lock, unless it stays.
pub async fn bind(settings: ServerConfig) -> Result<Server, StartError> {
    let begun = Instant::now();
    loop {
        match Server::bind(settings.clone()).await {
            Err(StartError::StoreLocked(_)) if begun.elapsed() < ACKNOWLEDGED_WITHIN => {}
            bound => return bound,
        }
    }
}

/// The changes that put the rules and guards of a manifest.
pub fn puts(yaml: &str) -> impl Iterator<Item = rule_change::Kind> {
    let documents = manifest::parse(yaml).expect("a manifest");
    documents.into_iter().map(|document| match document.manifest {
        manifest::Manifest::Rule(rule) => rule_change::Kind::Put(rule),
        manifest::Manifest::Guard(guard) => rule_change::Kind::PutGuard(guard),
        other => panic!("neither a rule nor a guard: {other:?}"),
    })
}
