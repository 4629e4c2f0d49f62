//! Builds the state of a server and starts the tasks behind its services, which must not end while it serves.

use std::future::Future;
use std::sync::Arc;

use damper_core::kill::MAX_KILLS;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::auth::{AuthContext, Authenticator, expiry};
use crate::cluster::peers::Peers;
use crate::cluster::{Cluster, PeerConfig};
use crate::config::{ServerConfig, max_bytes};
use crate::jobs::open::OpenedJobs;
use crate::jobs::{Jobs, policies};
use crate::metrics::Metrics;
use crate::push::convergence::WatchedChanges;
use crate::push::debounce;
use crate::push::delivery::Deliveries;
use crate::push::fleet_state::FleetState;
use crate::push::sessions::Sessions;
use crate::state::State;
use crate::state::exclusive::ExclusiveWorker;
use crate::state::history::PastReads;
use crate::state::known_store::{KnownStore, PeerEpochs};
use crate::state::resource_key::{GUARDS, KILLS, QUEUES, RULES};
use crate::state::retention;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::TOKENS;
use crate::state::watcher::StoreWatcher;
use crate::stats::Stats;
use crate::write::{MAX_QUEUES, WriteLimits, Writes};
use crate::write::{held_kills, kill_expiry, token_expiry};
use damper_net::limits::Limiter;
use damper_net::tls::TlsReloader;
use damper_store::Store;
use damper_store::writer;
use damper_store::writer::{EntryLimit, Writer};

/// The tasks, which return their names.
pub(crate) type Tasks = JoinSet<&'static str>;

/// The opened resources of a server.
pub(crate) struct OpenedServer {
    pub(crate) settings: ServerConfig,
    pub(crate) tls: Option<Arc<TlsReloader>>,
    pub(crate) metrics: Metrics,
    /// The address of this replica for its peers.
    pub(crate) address: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) view: Snapshot,
    pub(crate) jobs: OpenedJobs,
}

#[cfg(test)]
impl OpenedServer {
    /// The resources of a server with this store, without ports.
    pub(crate) async fn for_test(store: Arc<dyn Store>) -> Self {
        Self {
            settings: ServerConfig::new(damper_store::StoreUrl::Sled("unused".into())),
            tls: None,
            metrics: Metrics::new(),
            address: "http://127.0.0.1:1".to_owned(),
            view: Snapshot::of(&store.load().await.expect("the store is there")),
            store,
            jobs: OpenedJobs::none(),
        }
    }
}

/// Starts the tasks behind the services.
pub(crate) fn start(opened: OpenedServer) -> (Parts, Tasks) {
    let OpenedServer { settings, tls, metrics, address, store, view, jobs } = opened;
    let mut tasks = Tasks::new();
    view.publish_to(&metrics);
    let view = Arc::new(view);
    let (publish, table) = watch::channel(view.clone());
    let (show, distributed) = watch::channel(view);
    let (refresh, looks) = mpsc::channel(1);
    let (hold, holds) = mpsc::channel(64);
    let (epochs, peers) = watch::channel(PeerEpochs::new());
    let follower = StoreWatcher::new(store.clone(), publish, looks, holds, peers, metrics.clone());
    spawn(&mut tasks, "table", follower.run());
    let found = store;
    let store: Arc<dyn Store> = Arc::new(KnownStore::new(found.clone(), table.clone()));
    let (writer, writing) = Writer::spawn(store.clone(), writer_config(&settings));
    spawn(&mut tasks, "writer", ended(writing, "writer"));
    let (kept, first_after) = (settings.history_retention, settings.first_retention_after);
    spawn(&mut tasks, "history", retention::run(store.clone(), table.clone(), kept, first_after));
    spawn(&mut tasks, "distribution", debounce::pass_on(table.clone(), show));
    if let Some(tls) = tls.clone() {
        spawn(&mut tasks, "certificate", async move { tls.follow().await });
    }
    let replicas = Peers::new(address, table.borrow().epoch(), epochs);
    let hub =
        Sessions::new(replicas.id().clone(), settings.report_interval, settings.watched_report_interval);
    let (stopping, ended) = (CancellationToken::new(), CancellationToken::new());
    let state = Arc::new(State {
        store,
        found,
        writer,
        table,
        distributed,
        refresh,
        hold,
        past: PastReads::new(),
        worker: ExclusiveWorker::new(),
        unary_deadline: settings.unary_deadline,
    });
    let access = Arc::new(Authenticator::new(
        settings.auth,
        settings.page_origins.clone(),
        settings.client_identities.clone(),
    ));
    let limiter = Limiter::new(settings.limits.clone(), metrics.net.limits.clone());
    let auth = Arc::new(AuthContext {
        state: state.clone(),
        access: access.clone(),
        limiter: limiter.clone(),
        metrics: metrics.clone(),
        started_at: replicas.started_at(),
    });
    let fleet = Arc::new(FleetState {
        state,
        stats: Stats::new(settings.max_routes, settings.max_statistics_bytes, hub.pace()),
        hub,
        metrics,
        deliveries: Deliveries::default(),
        counting: ExclusiveWorker::new(),
        watched_changes: WatchedChanges::default(),
    });
    let config = PeerConfig { peer_ca: settings.peer_ca.clone(), peer_name: settings.peer_name.clone() };
    let cluster = Arc::new(Cluster { fleet, peers: replicas, access, tls, config, stopping, ended });
    let OpenedJobs { jobs, running } = jobs;
    let jobs = Arc::new(jobs);
    if let Some((running, current)) = running {
        spawn(&mut tasks, "jobs", running);
        let tables = cluster.fleet.state.table.clone();
        spawn(&mut tasks, "queues", policies::follow(tables, current));
    }
    let writes = Arc::new(Writes {
        fleet: cluster.fleet.clone(),
        limiter,
        limits: write_limits(&settings),
        jobs: jobs.clone(),
    });
    spawn(&mut tasks, "kills", kill_expiry::run(writes.clone()));
    spawn(&mut tasks, "held kills", held_kills::run(writes.clone()));
    spawn(&mut tasks, "tokens", token_expiry::run(writes.clone()));
    spawn(&mut tasks, "access", expiry::run(auth.clone()));
    (Parts { settings, auth, cluster, writes, jobs }, tasks)
}

/// The contexts of a server's services, from the bottom up.
pub(crate) struct Parts {
    pub(crate) settings: ServerConfig,
    pub(crate) auth: Arc<AuthContext>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) writes: Arc<Writes>,
    pub(crate) jobs: Arc<Jobs>,
}

fn write_limits(settings: &ServerConfig) -> WriteLimits {
    WriteLimits {
        max_rules: settings.max_rules,
        max_guards: settings.max_guards,
        max_tokens: settings.max_tokens,
        max_apply_bytes: settings.max_apply_bytes,
        max_amplification: settings.max_amplification.sends(),
    }
}

/// Limits the number of entries of each kind.
fn writer_config(settings: &ServerConfig) -> writer::WriterConfig {
    let limit = |prefix: &str, max_entries: usize| EntryLimit {
        prefix: prefix.to_owned(),
        max_entries,
        max_bytes: max_bytes(max_entries),
    };
    let limits = vec![
        limit(RULES, settings.max_rules),
        limit(GUARDS, settings.max_guards),
        // A kill is never refused for its length.
        EntryLimit { max_bytes: usize::MAX, ..limit(KILLS, MAX_KILLS) },
        limit(TOKENS, settings.max_tokens),
        limit(QUEUES, MAX_QUEUES),
    ];
    writer::WriterConfig { limits, ..Default::default() }
}

fn spawn(tasks: &mut Tasks, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        task.await;
        name
    });
}

/// Waits for the end of a spawned task and logs its failure.
async fn ended(task: tokio::task::JoinHandle<()>, name: &'static str) {
    if let Err(error) = task.await {
        tracing::error!(%error, name, "a task failed");
    }
}
