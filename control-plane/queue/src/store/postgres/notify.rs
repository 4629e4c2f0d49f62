//! Wake-ups between servers.
//!
//! A commit with a notification takes a lock over all commits of the database, so none has one. A server
//! notifies the others on a connection of its own, at most 20 times a second, and only of jobs that are due
//! before each would read the due times by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use damper_core::job::Wall;
use tokio::sync::Notify;

use super::Shared;
use super::connection::Stop;
use crate::store::clock::now;

/// Shortest time between two notifications.
const PAUSE: Duration = Duration::from_millis(50);

/// Time until a lost connection is opened again.
const RECONNECT: Duration = Duration::from_secs(1);

/// A server reads the due times by itself this often.
const READS_EVERY_MS: u64 = 1_000;

/// Notifications in both directions.
#[derive(Default)]
pub(super) struct Notifier {
    announce: Notify,
    received: Notify,
    has_peers: AtomicBool,
}

impl Notifier {
    pub(super) fn set_peers(&self, has_peers: bool) {
        self.has_peers.store(has_peers, Ordering::Relaxed);
    }

    /// Notifies the other servers, if a job is due soon.
    pub(super) fn announce(&self, mut due: impl Iterator<Item = Wall>) {
        let soon = now().0.saturating_add(READS_EVERY_MS);
        if self.has_peers.load(Ordering::Relaxed) && due.any(|at| at.0 <= soon) {
            self.announce.notify_one();
        }
    }

    pub(super) async fn woken(&self) {
        self.received.notified().await;
    }
}

/// Sends and receives notifications until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        if let Err(stop) = listen(&shared).await {
            tracing::debug!(error = %crate::store::Error::from(stop), "no notifications from other servers");
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Returns when the connection is lost.
async fn listen(shared: &Arc<Shared>) -> Result<(), Stop> {
    let own = Arc::new(AtomicI32::new(0));
    let mut connection = shared
        .connect({
            let (shared, own) = (Arc::downgrade(shared), own.clone());
            move |process| {
                if process != own.load(Ordering::Relaxed)
                    && let Some(shared) = shared.upgrade()
                {
                    shared.notifier.received.notify_one();
                }
            }
        })
        .await?;
    for row in connection.query("select pg_backend_pid()", &[]).await? {
        own.store(row.try_get(0)?, Ordering::Relaxed);
    }
    connection.batch("listen damper_queue").await?;
    // What was sent before is not received.
    shared.notifier.received.notify_one();
    loop {
        tokio::select! {
            () = connection.closed() => return Ok(()),
            () = shared.notifier.announce.notified() => {}
        }
        connection.batch("notify damper_queue").await?;
        tokio::time::sleep(PAUSE).await;
    }
}
