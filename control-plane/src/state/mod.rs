//! State of this replica: the snapshot of rules, guards, queues, kills and tokens at one revision, the
//! watcher of the store, and earlier revisions.

pub(crate) mod edited;
pub(crate) mod error;
pub(crate) mod exclusive;
pub(crate) mod guards;
pub(crate) mod held_kills;
pub(crate) mod history;
pub(crate) mod job_action;
pub(crate) mod kills;
pub(crate) mod known_store;
pub(crate) mod preview;
pub(crate) mod resource_key;
pub(crate) mod retention;
pub(crate) mod snapshot;
pub(crate) mod stored;
pub(crate) mod text;
pub(crate) mod tokens;
pub(crate) mod values;
pub(crate) mod watcher;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use damper_store::Store;
use damper_store::writer::Writer;
use tokio::sync::{mpsc, watch};
use tonic::{Response, Status};

use crate::state::error::{ApiError, within};
use crate::state::exclusive::ExclusiveWorker;
use crate::state::history::PastReads;
use crate::state::snapshot::Snapshot;
use crate::state::watcher::Hold;

/// Known state of the store, and the ways to change it.
pub(crate) struct State {
    /// The store while it is the one of the snapshot.
    pub(crate) store: Arc<dyn Store>,
    /// The store whatever it contains; only for accepting it.
    pub(crate) found: Arc<dyn Store>,
    pub(crate) writer: Writer,
    /// Latest snapshot.
    pub(crate) table: watch::Receiver<Arc<Snapshot>>,
    /// Snapshot as distributed, debounced.
    pub(crate) distributed: watch::Receiver<Arc<Snapshot>>,
    /// Makes the watcher read the store now, because a client knows a later revision.
    pub(crate) refresh: mpsc::Sender<()>,
    /// Puts a kill in force that the store cannot accept now.
    pub(crate) hold: mpsc::Sender<Hold>,
    /// Turns of reading earlier changes.
    pub(crate) past: PastReads,
    /// Worker of CPU-heavy requests.
    pub(crate) worker: ExclusiveWorker,
    /// The time limit of a unary request.
    pub(crate) unary_deadline: Duration,
}

impl State {
    /// Returns the current snapshot.
    pub(crate) fn table(&self) -> Arc<Snapshot> {
        self.table.borrow().clone()
    }

    /// Waits for a snapshot of at least this revision, for half the time of a unary request.
    pub(crate) async fn at_least(&self, revision: u64) -> Result<Arc<Snapshot>, ApiError> {
        self.table_at(revision, self.unary_deadline / 2).await
    }

    /// Waits for a snapshot of at least this revision.
    pub(crate) async fn table_at(&self, revision: u64, within: Duration) -> Result<Arc<Snapshot>, ApiError> {
        let mut table = self.table.clone();
        let reached = table.wait_for(|view| view.revision() >= revision);
        match tokio::time::timeout(within, reached).await {
            Ok(Ok(view)) => Ok(view.clone()),
            Ok(Err(_)) => Err(ApiError::unavailable("this server of the control plane is stopping")),
            Err(_) => Err(ApiError::unavailable(format!(
                "this replica of the control plane has not received revision {revision} from the store yet; try again"
            ))),
        }
    }

    /// Answers a unary request within its time limit.
    pub(crate) async fn answer<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<Response<T>, Status> {
        within(self.unary_deadline, work).await
    }
}
