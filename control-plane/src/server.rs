//! One server: the store, the tasks behind the services, and the port.
//!
//! [`Server::bind`] does all that can fail: it opens and reads the store and takes the ports. [`Server::run`]
//! serves until it is told to stop; then health turns, streams get their goodbye at once, and what is still open
//! after the drain time is cut.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use damper_core::kill::MAX_KILLS;
use damper_proto::v1;
use damper_proto::v1::distribution_server::DistributionServer;
use damper_proto::v1::fleet_server::FleetServer;
use damper_proto::v1::guards_server::GuardsServer;
use damper_proto::v1::history_server::HistoryServer;
use damper_proto::v1::kills_server::KillsServer;
use damper_proto::v1::replicas_server::ReplicasServer;
use damper_proto::v1::rules_server::RulesServer;
use damper_proto::v1::tokens_server::TokensServer;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::access::{self, Access, BootstrapError, ending, session};
use crate::connection::Port;
use crate::distribution::{Distribution, pace};
use crate::exposition::Exposition;
use crate::fleet::Fleet;
use crate::follow::{Follower, LOAD_WITHIN};
use crate::guards::Guards;
use crate::history::{History, retention};
use crate::hub::Hub;
use crate::kills::{Kills, expiry};
use crate::limits::{Limiter, layer};
use crate::metrics::Metrics;
use crate::replicas::{self, Peers, Replicas};
use crate::rules::Rules;
use crate::settings::{Settings, StoreUrl};
use crate::shared::Shared;
use crate::stats::Stats;
use crate::store::{self, OpenError, Presence, Store};
use crate::table::{GUARDS, KILLS, RULES, TOKENS, TableView};
use crate::tls::Keychain;
use crate::tokens::{self, Tokens};
use crate::writer::{self, EntryLimit, Writer};
use crate::{http, table};

/// What a message may have above the limit, so that a name of that length is still answered by its field.
const MESSAGE_SPARE_BYTES: usize = 64 << 10;
const RELEASED_WITHIN: Duration = Duration::from_secs(2);
const LOCK_TRIES: u32 = 5;
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Why a server can not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process has the store open.
    #[error(transparent)]
    StoreLocked(OpenError),
    /// The store is damaged; restore a backup.
    #[error("the store is damaged: {0}")]
    StoreDamaged(String),
    /// The store can not be used as it was named: a path, a file or a setting is wrong.
    #[error(transparent)]
    StoreUnusable(OpenError),
    /// The store does not answer.
    #[error("the store {store} can not be reached: {reason}")]
    StoreUnreachable {
        /// Which.
        store: String,
        /// What came of trying.
        reason: String,
    },
    /// The address is taken.
    #[error("{address} is in use by another process")]
    AddressInUse {
        /// Which.
        address: SocketAddr,
    },
    /// Other replicas can not be told where this one is.
    #[error(
        "{listen} is every address of this machine, and other replicas over the same etcd must be told one: name it \
         with --advertise URL"
    )]
    NoAddress {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// The address can not be listened on.
    #[error("can not listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// An address is open to others and not guarded enough; each problem with the ways out of it.
    #[error("{}", .0.join("; "))]
    Insecure(Vec<String>),
    /// Tokens are asked for, and the first one could not be made.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The certificate, the key or the authorities of clients can not be used; all that is wrong.
    #[error("{}", .0.join("; "))]
    Tls(Vec<String>),
}

/// Why a server stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A task that must not end has ended; its failure was logged.
    #[error("the {0} has stopped")]
    TaskEnded(&'static str),
}

/// A server that holds its ports and has read its store.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    local: SocketAddr,
    metrics: Option<(TcpListener, SocketAddr)>,
    tasks: JoinSet<&'static str>,
    presence: Option<Presence>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Server {
    /// Judges what can be judged of the settings without opening the store or a port: what they leave unguarded, and the
    /// files of TLS.
    ///
    /// # Errors
    /// What would keep the server from starting.
    pub fn check(settings: &Settings) -> Result<(), StartError> {
        let tls = keychain(settings, &Metrics::new())?;
        let address = replicas::address(settings, settings.listen);
        address.map(|_| drop(tls)).ok_or(StartError::NoAddress { listen: settings.listen })
    }

    /// Opens and reads the store and takes the ports; port 0 takes any free one.
    ///
    /// # Errors
    /// Whatever keeps the server from starting, in the order in which it is tried: unsafe or taken address, then
    /// the store.
    pub async fn bind(settings: Settings) -> Result<Self, StartError> {
        let own = Metrics::new();
        let tls = keychain(&settings, &own)?;
        let (listener, local) = listen(settings.listen).await?;
        let metrics = match settings.metrics_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let store = open(&settings).await?;
        let view = read(&*store, &settings.store).await?;
        let address = replicas::address(&settings, local).ok_or(StartError::NoAddress { listen: local })?;
        let (shared, mut tasks) = start(settings, tls, own, address, store, view);
        if shared.access.required {
            access::ensure(&shared).await?;
        }
        let presence = replicas::join(&shared, &mut tasks).await;
        Ok(Self { shared, listener, local, metrics, tasks, presence })
    }

    /// Where gRPC, gRPC-Web and the page are served.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Where metrics and health are served besides.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `shutdown` is ready, then ends all streams and returns within a few seconds.
    ///
    /// # Errors
    /// The port failed, or a task behind it.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Self { shared, listener, metrics, mut tasks, presence, .. } = self;
        let (reporter, health) = tonic_health::server::health_reporter();
        report_health(&reporter, ServingStatus::Serving).await;
        let cut = CancellationToken::new();
        let routes = routes(&shared, health);
        let stopping = shared.stopping.clone();
        let port = |routes, tls| Port {
            routes,
            tls,
            limiter: shared.limiter.clone(),
            metrics: shared.metrics.clone(),
            stopping: stopping.clone(),
            cut: cut.clone(),
        };
        let mut serving = Box::pin(port(routes, shared.tls.clone()).serve(listener));
        if let Some((listener, _)) = metrics {
            let tls = shared.tls.clone().filter(|_| !shared.settings.metrics_plaintext);
            let serving =
                port(http::operations(shared.clone(), http::Readers::Everybody), tls).serve(listener);
            tasks.spawn(async move {
                serving.await;
                "metrics port"
            });
        }
        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            () = &mut serving => Err(ServeError::TaskEnded("port")),
            Some(ended) = tasks.join_next() => Err(ServeError::TaskEnded(ended.unwrap_or("task behind the port"))),
        };
        report_health(&reporter, ServingStatus::NotServing).await;
        stopping.cancel();
        if outcome.is_ok() {
            let leaving = async { tokio::join!(replicas::leave(&shared, presence), &mut serving) };
            if timeout(shared.settings.drain, leaving).await.is_err() {
                tracing::warn!("connections that did not end in time are cut");
            }
        }
        shared.ended.cancel();
        cut.cancel();
        drop(serving);
        tasks.shutdown().await;
        let store = Arc::downgrade(&shared.store);
        drop(shared);
        released(store).await;
        outcome
    }
}

/// What TLS begins with, if there is to be any; nothing unguarded may be open to others.
fn keychain(settings: &Settings, metrics: &Metrics) -> Result<Option<Arc<Keychain>>, StartError> {
    let open_doors = settings.open_doors();
    if !settings.allow_insecure && !open_doors.is_empty() {
        return Err(StartError::Insecure(open_doors));
    }
    let tls = settings.tls.clone().map(|tls| Keychain::open(tls, metrics.clone()).map(Arc::new));
    tls.transpose().map_err(StartError::Tls)
}

/// Waits until nobody holds the store: whoever starts the next server on it must not find it locked. Connections
/// that were cut let go of it as soon as their tasks run.
async fn released(store: Weak<dyn Store>) {
    let gone = async {
        while store.strong_count() > 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    if timeout(RELEASED_WITHIN, gone).await.is_err() {
        tracing::warn!("the store is still in use");
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        Ok((listener, local))
    };
    bound.await.map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::AddressInUse { address },
        _ => StartError::Listen { address, source },
    })
}

async fn open(settings: &Settings) -> Result<Arc<dyn Store>, StartError> {
    let mut place = settings.store.clone();
    if let StoreUrl::Etcd(etcd) = &mut place
        && settings.etcd_password.is_some()
    {
        etcd.password = settings.etcd_password.clone();
    }
    let mut opened = place.clone().open().await;
    // A server that has just ended may still be closing its files.
    for _ in 0..LOCK_TRIES {
        if !matches!(opened, Err(OpenError::Locked { .. })) {
            break;
        }
        sleep(LOCK_AGAIN_AFTER).await;
        opened = place.clone().open().await;
    }
    opened.map_err(|error| match error {
        OpenError::Locked { .. } => StartError::StoreLocked(error),
        OpenError::Damaged { .. } => StartError::StoreDamaged(error.to_string()),
        _ => StartError::StoreUnusable(error),
    })
}

async fn read(store: &dyn Store, place: &StoreUrl) -> Result<TableView, StartError> {
    let unreachable = |reason: String| StartError::StoreUnreachable { store: place.to_string(), reason };
    match timeout(LOAD_WITHIN, store.load()).await {
        Ok(Ok(state)) => Ok(TableView::of(&state)),
        Ok(Err(store::Error::Damaged { reason })) => Err(StartError::StoreDamaged(reason)),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("no answer within {} s", LOAD_WITHIN.as_secs()))),
    }
}

/// Starts the tasks behind the services.
fn start(
    settings: Settings,
    tls: Option<Arc<Keychain>>,
    metrics: Metrics,
    address: String,
    store: Arc<dyn Store>,
    view: table::TableView,
) -> (Arc<Shared>, JoinSet<&'static str>) {
    let mut tasks = JoinSet::new();
    metrics.table(&view);
    let view = Arc::new(view);
    let limit = |prefix: &str, max_entries| EntryLimit { prefix: prefix.to_owned(), max_entries };
    let limits = vec![
        limit(RULES, settings.max_rules),
        limit(GUARDS, settings.max_guards),
        limit(KILLS, MAX_KILLS),
        limit(TOKENS, settings.max_tokens),
    ];
    let writing = writer::Settings { limits, ..Default::default() };
    let (writer, writing) = Writer::spawn(store.clone(), writing);
    tasks.spawn(ended(writing, "writer"));
    let (publish, table) = watch::channel(view.clone());
    let (show, distributed) = watch::channel(view);
    let (ahead, claims) = mpsc::channel(1);
    let follower = Follower::new(store.clone(), publish, claims, metrics.clone());
    tasks.spawn(async move {
        follower.run().await;
        "table"
    });
    let (kept, first_after) = (settings.history_retention, settings.first_retention_after);
    let retention = retention::run(store.clone(), table.clone(), kept, first_after);
    tasks.spawn(async move {
        retention.await;
        "history"
    });
    let paced = pace::pass_on(table.clone(), show);
    tasks.spawn(async move {
        paced.await;
        "distribution"
    });
    let replicas = Peers::new(address);
    let hub = Hub::new(replicas.id().clone(), settings.report_interval, settings.watched_report_interval);
    let stats = Stats::new(settings.max_routes, hub.pace());
    if let Some(tls) = tls.clone() {
        tasks.spawn(async move {
            tls.follow().await;
            "certificate"
        });
    }
    let limiter = Limiter::new(settings.limits.clone(), metrics.clone());
    let stopping = CancellationToken::new();
    let exposition = Exposition::default();
    let shared = Shared {
        access: Access::new(&settings),
        settings,
        store,
        writer,
        table,
        distributed,
        ahead,
        hub,
        stats,
        metrics,
        limiter,
        tls,
        exposition,
        replicas,
        stopping,
        ended: CancellationToken::new(),
    };
    let shared = Arc::new(shared);
    let clearing = expiry::run(shared.clone());
    tasks.spawn(async move {
        clearing.await;
        "kills"
    });
    let clearing = tokens::expiry::run(shared.clone());
    tasks.spawn(async move {
        clearing.await;
        "tokens"
    });
    let ending = ending::run(shared.clone());
    tasks.spawn(async move {
        ending.await;
        "access"
    });
    (shared, tasks)
}

/// Ends with a task and tells its name.
async fn ended(task: tokio::task::JoinHandle<()>, name: &'static str) -> &'static str {
    if let Err(error) = task.await {
        tracing::error!(%error, name, "a task failed");
    }
    name
}

/// Everything on the port: the API, for gRPC and gRPC-Web, then the rest.
fn routes(
    shared: &Arc<Shared>,
    health: tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health>,
) -> Router {
    let most = shared.settings.limits.max_message_bytes.saturating_add(MESSAGE_SPARE_BYTES);
    let rules = RulesServer::new(Rules::new(shared.clone())).max_decoding_message_size(most);
    let guards = GuardsServer::new(Guards::new(shared.clone())).max_decoding_message_size(most);
    let distribution =
        DistributionServer::new(Distribution::new(shared.clone())).max_decoding_message_size(most);
    let fleet = FleetServer::new(Fleet::new(shared.clone())).max_decoding_message_size(most);
    let history = HistoryServer::new(History::new(shared.clone())).max_decoding_message_size(most);
    let kills = KillsServer::new(Kills::new(shared.clone())).max_decoding_message_size(most);
    let tokens = TokensServer::new(Tokens::new(shared.clone())).max_decoding_message_size(most);
    let replicas = ReplicasServer::new(Replicas::new(shared.clone()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(damper_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were made by the compiler");
    let api: Router = Routes::new(rules)
        .add_service(guards)
        .add_service(distribution)
        .add_service(fleet)
        .add_service(history)
        .add_service(kills)
        .add_service(tokens)
        .add_service(replicas)
        .add_service(health)
        .add_service(reflection)
        .into_axum_router()
        .layer(tower::util::MapResponseLayer::new(http::correct_code))
        .layer(from_fn_with_state(shared.clone(), layer::answer))
        .layer(from_fn_with_state(shared.clone(), access::layer::api))
        .layer(tonic_web::GrpcWebLayer::new());
    let operations = http::operations(shared.clone(), http::Readers::Viewers);
    api.merge(operations)
        .merge(session::routes(shared.clone()))
        .fallback(http::page)
        .layer(from_fn_with_state(shared.clone(), access::own_site_only))
}

/// Tells health of the server and of each service.
async fn report_health(reporter: &HealthReporter, status: ServingStatus) {
    use v1::{
        distribution_server, fleet_server, guards_server, history_server, kills_server, rules_server,
        tokens_server,
    };
    for service in [
        "",
        rules_server::SERVICE_NAME,
        guards_server::SERVICE_NAME,
        distribution_server::SERVICE_NAME,
        fleet_server::SERVICE_NAME,
        history_server::SERVICE_NAME,
        kills_server::SERVICE_NAME,
        tokens_server::SERVICE_NAME,
    ] {
        reporter.set_service_status(service, status).await;
    }
}
