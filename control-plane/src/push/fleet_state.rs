//! The connected clients and their reports, over the snapshot of this replica. Reads of the API start here.

use std::sync::Arc;

use crate::metrics::Metrics;
use crate::push::convergence::WatchedChanges;
use crate::push::delivery::Deliveries;
use crate::push::sessions::Sessions;
use crate::state::State;
use crate::state::error::ApiError;
use crate::state::exclusive::ExclusiveWorker;
use crate::state::snapshot::Snapshot;
use crate::stats::Stats;

/// The clients of the fleet as far as this replica knows them.
pub(crate) struct FleetState {
    pub(crate) state: Arc<State>,
    pub(crate) hub: Sessions,
    pub(crate) stats: Stats,
    pub(crate) metrics: Metrics,
    pub(crate) deliveries: Deliveries,
    /// For counts of the clients that have applied a change.
    pub(crate) counting: ExclusiveWorker,
    pub(crate) watched_changes: WatchedChanges,
}

impl FleetState {
    /// Returns the current snapshot.
    pub(crate) fn table(&self) -> Arc<Snapshot> {
        self.state.table()
    }

    /// Runs work that visits all rules, routes or clients: off the runtime, one job at a time.
    pub(crate) async fn off_runtime<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let fleet = self.clone();
        self.state.worker.run(move |_| work(&fleet)).await
    }

    /// Runs such work even if the queue is full, because its result is shared by all waiting requests.
    pub(crate) async fn off_runtime_unqueued<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let fleet = self.clone();
        self.state.worker.run_unqueued(move |_| work(&fleet)).await
    }
}
