//! One server: the store, the tasks behind the services, and the ports.
//!
//! [`Server::bind`] opens and reads the store and binds the ports, so that most failures occur there.
//! [`Server::run`] serves until shutdown. Then health reports not serving, streams get their goodbye, spread
//! over a part of the drain time if there are many, and connections still open after it are closed.

pub(crate) mod error;
pub(crate) mod first_token;
pub(crate) mod http;
pub(crate) mod open;
pub(crate) mod routes;
pub(crate) mod tasks;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;

use crate::auth::methods;
use crate::cluster::membership;
use crate::config::ServerConfig;
use crate::jobs;
use crate::metrics::Metrics;
pub(crate) use crate::server::error::{ServeError, StartError};
use crate::server::open::{keychain, listen, open, read};
use crate::server::routes::{report_health, routes};
use crate::server::tasks::Parts;
use crate::server::tasks::{OpenedServer, Tasks, start};
use crate::telemetry::{ScrapeCache, Telemetry};
use damper_net::connection::Listener;
use damper_net::connection::RequestTimeouts;
use damper_net::limits::Limiter;
use damper_store::Membership;
use damper_store::StoreUrl;

/// The longest watch of health by one request, which needs no token.
const WATCHED_WITHIN: Duration = Duration::from_secs(300);
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// A server that holds its ports and has read its store.
pub struct Server {
    parts: Parts,
    listener: TcpListener,
    local: SocketAddr,
    metrics: Option<(TcpListener, SocketAddr)>,
    tasks: Tasks,
    presence: Option<Membership>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Server {
    /// Checks the settings without opening the store or a port: unprotected addresses, and the TLS files.
    ///
    /// # Errors
    /// The first problem that prevents a start.
    pub fn check(settings: &ServerConfig) -> Result<(), StartError> {
        let tls = keychain(settings, &Metrics::new())?;
        // Not an error at start, because a new certificate may be written while the server runs.
        if let Some(problem) = tls.as_ref().and_then(|tls| tls.validity().problem(SystemTime::now())) {
            return Err(StartError::Tls(vec![format!("tls_cert: {problem}")]));
        }
        check_job_store(settings)?;
        let address = address(settings, settings.listen);
        address.map(|_| drop(tls)).ok_or(StartError::NoAddress { listen: settings.listen })
    }

    /// Opens and reads the store and binds the ports; port 0 selects any free one.
    ///
    /// # Errors
    /// The first problem that prevents a start: an unprotected or used address, then the store.
    pub async fn bind(settings: ServerConfig) -> Result<Self, StartError> {
        let own = Metrics::new();
        let tls = keychain(&settings, &own)?;
        check_job_store(&settings)?;
        let (listener, local) = listen(settings.listen).await?;
        let metrics = match settings.metrics_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let store = open(&settings).await?;
        let view = read(&*store, &settings.store).await?;
        let address = address(&settings, local).ok_or(StartError::NoAddress { listen: local })?;
        let jobs = jobs::open::open(&settings.queues, settings.queues_password.clone(), &view)
            .await
            .map_err(|source| StartError::JobStore { store: settings.queues.to_string(), source })?;
        let (parts, mut tasks) =
            start(OpenedServer { settings, tls, metrics: own, address, store, view, jobs });
        if parts.auth.access.required {
            first_token::ensure(&parts).await?;
        }
        let presence = membership::join(&parts.cluster, &mut tasks).await.map_err(|untold| {
            let store = parts.settings.store.to_string();
            StartError::StoreUnreachable { store, reason: untold.to_string() }
        })?;
        Ok(Self { parts, listener, local, metrics, tasks, presence })
    }

    /// The address of gRPC, gRPC-Web and the web UI.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The separate address of metrics and health.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `shutdown` is ready, then ends all streams and returns within a few seconds.
    ///
    /// # Errors
    /// The port failed, or a task behind it.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Self { parts, listener, metrics, mut tasks, presence, .. } = self;
        let (reporter, health) = tonic_health::server::health_reporter();
        report_health(&reporter, ServingStatus::Serving).await;
        let cut = CancellationToken::new();
        let telemetry = Arc::new(Telemetry {
            cluster: parts.cluster.clone(),
            lags_after: parts.settings.lags_after,
            cache: ScrapeCache::default(),
            jobs: parts.jobs.clone(),
        });
        let routes = routes(&parts, &telemetry, health);
        let stopping = parts.cluster.stopping.clone();
        let settings = &parts.settings;
        let patience = RequestTimeouts {
            // For the answer, and for reading it.
            answered_within: settings.unary_deadline * 2,
            watched_within: settings.stream_age.min(WATCHED_WITHIN),
            kind: methods::answer_kind,
        };
        let port = |routes, tls, limiter| Listener {
            routes,
            tls,
            limiter,
            patience,
            counters: parts.auth.metrics.net.clone(),
            stopping: stopping.clone(),
            cut: cut.clone(),
        };
        let mut serving =
            Box::pin(port(routes, parts.cluster.tls.clone(), parts.auth.limiter.clone()).serve(listener));
        if let Some((listener, _)) = metrics {
            let tls = parts.cluster.tls.clone().filter(|_| !parts.settings.metrics_plaintext);
            let routes = http::operations(telemetry.clone(), stopping.clone(), None);
            // Separate limits, so that a full main port does not block probes.
            let limiter = Limiter::new(settings.limits.of_metrics(), parts.auth.metrics.net.limits.clone());
            let serving = port(routes, tls, limiter).serve(listener);
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
        parts.jobs.stop();
        if outcome.is_ok() {
            tracing::info!(drain = ?parts.settings.drain, "shutting down: draining connections");
            let leaving = async { tokio::join!(membership::leave(&parts.cluster, presence), &mut serving) };
            if timeout(parts.settings.drain, leaving).await.is_err() {
                tracing::warn!("drain timed out; closing connections");
            }
        }
        parts.jobs.close().await;
        parts.cluster.ended.cancel();
        cut.cancel();
        drop(serving);
        tasks.shutdown().await;
        let (store, jobs) = (Arc::downgrade(&parts.writes.fleet.state.found), parts.jobs.store());
        drop((parts, telemetry));
        released(store).await;
        if let Some(jobs) = jobs {
            released(jobs).await;
        }
        outcome
    }
}

/// Waits until no task holds the store, so that the next server does not find it locked. Closed connections
/// release it as soon as their tasks run.
async fn released<T: ?Sized>(store: Weak<T>) {
    let gone = async {
        while store.strong_count() > 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    if timeout(RELEASED_WITHIN, gone).await.is_err() {
        tracing::warn!("the store is still in use");
    }
}

/// Errors if the job store does not fit the policy store.
fn check_job_store(settings: &ServerConfig) -> Result<(), StartError> {
    let problem = settings.queues.problem(&settings.store, settings.single_server);
    problem.map_or(Ok(()), |problem| Err(StartError::JobStorePlace(problem)))
}

/// Returns where peers reach this replica; `None` if the configuration must set it.
fn address(settings: &ServerConfig, local: SocketAddr) -> Option<String> {
    let is_shared = matches!(settings.store, StoreUrl::Etcd(_));
    membership::address(settings.advertise.as_deref(), settings.tls.is_some(), is_shared, local)
}
