//! What all services of one server hold in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::auth::Authenticator;
use crate::cluster::peers::Peers;
use crate::config::ServerConfig;
use crate::metrics::Metrics;
use crate::push::delivery::Deliveries;
use crate::push::sessions::Sessions;
use crate::state::error::ApiError;
use crate::state::exclusive::ExclusiveWorker;
use crate::state::snapshot::Snapshot;
use crate::state::watcher::Hold;
use crate::stats::Stats;
use crate::telemetry::ScrapeCache;
use damper_net::limits::Limiter;
use damper_net::tls::TlsReloader;
use damper_store::Store;
use damper_store::writer::Writer;

/// One server's state; every service holds it by `Arc`.
pub(crate) struct Shared {
    pub(crate) settings: ServerConfig,
    pub(crate) access: Authenticator,
    /// The store while it is the one that the table is from.
    pub(crate) store: Arc<dyn Store>,
    /// The store whatever it holds; only to accept it.
    pub(crate) found: Arc<dyn Store>,
    pub(crate) writer: Writer,
    /// The table as soon as it changes.
    pub(crate) table: watch::Receiver<Arc<Snapshot>>,
    /// The table at the pace in which it is distributed.
    pub(crate) distributed: watch::Receiver<Arc<Snapshot>>,
    /// Has the store asked now, because a client knows more than the table.
    pub(crate) look: mpsc::Sender<()>,
    /// Puts a kill in force that the store cannot take now.
    pub(crate) hold: mpsc::Sender<Hold>,
    pub(crate) hub: Sessions,
    pub(crate) stats: Stats,
    pub(crate) metrics: Metrics,
    pub(crate) limiter: Limiter,
    /// None = no TLS.
    pub(crate) tls: Option<Arc<TlsReloader>>,
    pub(crate) exposition: ScrapeCache,
    /// For reads that keep a processor busy.
    pub(crate) turn: ExclusiveWorker,
    /// For counts of clients that have a change.
    pub(crate) counting: ExclusiveWorker,
    pub(crate) deliveries: Deliveries,
    /// This replica and the others.
    pub(crate) replicas: Peers,
    /// Cancelled when streams must end.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the other replicas, too, need not be told any more.
    pub(crate) ended: CancellationToken,
}

impl Shared {
    /// The table now.
    pub(crate) fn table(&self) -> Arc<Snapshot> {
        self.table.borrow().clone()
    }

    /// Does work that looks at all rules, routes or clients: off the threads that serve streams, one at a time.
    pub(crate) async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = self.clone();
        self.turn.take(move |_| work(&shared)).await
    }

    /// The same for what is done once for all who wait for it, so that it need not be refused when much waits.
    pub(crate) async fn aside_in_any_case<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = self.clone();
        self.turn.take_in_any_case(move |_| work(&shared)).await
    }

    /// The table once it has reached the revision.
    pub(crate) async fn table_at(&self, revision: u64, within: Duration) -> Result<Arc<Snapshot>, ApiError> {
        let mut table = self.table.clone();
        let reached = table.wait_for(|view| view.revision() >= revision);
        match tokio::time::timeout(within, reached).await {
            Ok(Ok(view)) => Ok(view.clone()),
            Ok(Err(_)) => Err(ApiError::unavailable("the server is stopping")),
            Err(_) => {
                Err(ApiError::unavailable(format!("this replica has not reached revision {revision} yet")))
            }
        }
    }
}
