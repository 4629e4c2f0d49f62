//! Members: the servers of a store, as keys under leases.
//!
//! Membership is no part of the recorded state: it has no revisions, no history and no entry. While the store
//! is unreachable the last known members stay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Lease of a member. Longer than a pause of the process or of the network.
pub const LEASE: Duration = Duration::from_secs(10);

/// Time for the removal of the own key; after that the lease expires.
const LEAVE_WITHIN: Duration = Duration::from_millis(1500);

/// Members with the value of each, by id, this server included.
pub type Members = Arc<BTreeMap<String, Bytes>>;

/// Membership of this server. If dropped, it ends when the lease expires.
#[derive(Debug)]
pub struct Membership {
    known: watch::Receiver<Members>,
    leaving: CancellationToken,
    task: JoinHandle<()>,
}

impl Membership {
    /// Creates a membership of the task that keeps it until `leaving`, and the members that the task
    /// publishes.
    pub(crate) fn new(
        known: watch::Receiver<Members>,
        leaving: CancellationToken,
        task: JoinHandle<()>,
    ) -> Self {
        Self { known, leaving, task }
    }

    /// Returns the members; empty until the store has answered once.
    #[must_use]
    pub fn known(&self) -> watch::Receiver<Members> {
        self.known.clone()
    }

    /// Waits until the members include this server; false after `within`.
    pub async fn settled(&mut self, own: &str, within: Duration) -> bool {
        let joined = timeout(within, self.known.wait_for(|known| known.contains_key(own))).await;
        matches!(joined, Ok(Ok(_)))
    }

    /// Removes the own key, so that peers need not wait for the lease to expire.
    pub async fn leave(mut self) {
        self.leaving.cancel();
        if timeout(LEAVE_WITHIN, &mut self.task).await.is_err() {
            tracing::warn!("removing this replica's membership key timed out; its lease will expire");
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}
