//! What all services of one server hold in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::errors::Error;
use crate::exposition::Exposition;
use crate::hub::Hub;
use crate::limits::Limiter;
use crate::metrics::Metrics;
use crate::replicas::Peers;
use crate::settings::Settings;
use crate::stats::Stats;
use crate::store::Store;
use crate::table::TableView;
use crate::tls::Keychain;
use crate::writer::Writer;

/// One server's state; every service holds it by `Arc`.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) access: Access,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: Writer,
    /// The table as soon as it changes.
    pub(crate) table: watch::Receiver<Arc<TableView>>,
    /// The table at the pace in which it is distributed.
    pub(crate) distributed: watch::Receiver<Arc<TableView>>,
    /// Tells the table of a client that holds a later revision than it.
    pub(crate) ahead: mpsc::Sender<u64>,
    pub(crate) hub: Hub,
    pub(crate) stats: Stats,
    pub(crate) metrics: Metrics,
    pub(crate) limiter: Limiter,
    /// None = no TLS.
    pub(crate) tls: Option<Arc<Keychain>>,
    pub(crate) exposition: Exposition,
    /// This replica and the others.
    pub(crate) replicas: Peers,
    /// Cancelled when streams must end.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the other replicas, too, need not be told any more.
    pub(crate) ended: CancellationToken,
}

impl Shared {
    /// The table now.
    pub(crate) fn table(&self) -> Arc<TableView> {
        self.table.borrow().clone()
    }

    /// The table once it has reached the revision.
    pub(crate) async fn table_at(&self, revision: u64, within: Duration) -> Result<Arc<TableView>, Error> {
        let mut table = self.table.clone();
        let reached = table.wait_for(|view| view.revision() >= revision);
        match tokio::time::timeout(within, reached).await {
            Ok(Ok(view)) => Ok(view.clone()),
            Ok(Err(_)) => Err(Error::unavailable("the server is stopping")),
            Err(_) => {
                Err(Error::unavailable(format!("this replica has not reached revision {revision} yet")))
            }
        }
    }
}
