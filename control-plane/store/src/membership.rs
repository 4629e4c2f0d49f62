//! Who serves from a store at present: keys that live as long as their server says that it is there.
//!
//! Presence is no part of the recorded state: it has no revisions, no history, and no entry. While the store can not be
//! reached what was known last stays known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a server is known after it was last heard of. Long enough for a pause of the process or of the network.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long taking oneself out may take; after that the lease does it.
const LEAVE_WITHIN: Duration = Duration::from_millis(1500);

/// Who is there, oneself included: what each said of itself, by its id.
pub type Members = Arc<BTreeMap<String, Bytes>>;

/// A place among those who serve from a store; whoever drops it is forgotten when its lease ends.
#[derive(Debug)]
pub struct Membership {
    known: watch::Receiver<Members>,
    leaving: CancellationToken,
    task: JoinHandle<()>,
}

impl Membership {
    /// The task that keeps the place until it is told to leave, and what it finds out.
    pub(crate) fn new(
        known: watch::Receiver<Members>,
        leaving: CancellationToken,
        task: JoinHandle<()>,
    ) -> Self {
        Self { known, leaving, task }
    }

    /// Who is there; empty until the store has answered first.
    #[must_use]
    pub fn known(&self) -> watch::Receiver<Members> {
        self.known.clone()
    }

    /// Waits until the store has told who is there, this one included; false where it does not in time.
    pub async fn settled(&mut self, own: &str, within: Duration) -> bool {
        let told = timeout(within, self.known.wait_for(|known| known.contains_key(own))).await;
        matches!(told, Ok(Ok(_)))
    }

    /// Takes oneself out, so that the others need not wait for the lease to end.
    pub async fn leave(mut self) {
        self.leaving.cancel();
        if timeout(LEAVE_WITHIN, &mut self.task).await.is_err() {
            tracing::warn!("the store did not take this replica out in time; its lease will");
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}
