//! Opens the job store before the server serves.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_queue::store::postgres::{PostgresStore, Settings};
use damper_queue::store::redb::RedbStore;
use damper_queue::store::{Error, Store};
use damper_queue::{JobServer, Queues, SystemClock};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::jobs::url::QueuesUrl;
use crate::jobs::{Jobs, policies};
use crate::state::snapshot::Snapshot;

const LOCK_TRIES: u32 = 5;
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Runs the job server until it stops.
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An opened job store.
pub(crate) struct OpenedJobs {
    pub(crate) jobs: Jobs,
    /// Its task, and the queues and kills that it applies; `None` without a store.
    pub(crate) running: Option<(Running, watch::Sender<Arc<Queues>>)>,
}

impl OpenedJobs {
    /// No job store.
    pub(crate) fn none() -> Self {
        Self { jobs: Jobs::none(), running: None }
    }
}

/// Opens the job store, with the queues and kills of a snapshot in force.
pub(crate) async fn open(
    url: &QueuesUrl,
    password: Option<String>,
    table: &Snapshot,
) -> Result<OpenedJobs, Error> {
    let store: Arc<dyn Store> = match url {
        QueuesUrl::Off => {
            tracing::info!("jobs are disabled: no job store is set (--queues)");
            return Ok(OpenedJobs::none());
        }
        QueuesUrl::Redb(path) => Arc::new(open_file(path).await?),
        QueuesUrl::Postgres(url) => {
            Arc::new(PostgresStore::open(Settings::new(url, password).map_err(Error::Open)?).await?)
        }
    };
    let (current, queues) = watch::channel(Arc::new(policies::of(table, SystemTime::now())));
    let (server, running) = JobServer::open(store.clone(), queues, Arc::new(SystemClock)).await?;
    tracing::info!(store = %url, leases = server.in_flight(), "opened the job store");
    Ok(OpenedJobs { jobs: Jobs::over(&store, server), running: Some((Box::pin(running), current)) })
}

async fn open_file(path: &Path) -> Result<RedbStore, Error> {
    let mut opened = RedbStore::open(path).await;
    // A server that has just ended may still be closing its file.
    for _ in 0..LOCK_TRIES {
        if !matches!(opened, Err(Error::Open(_))) {
            break;
        }
        sleep(LOCK_AGAIN_AFTER).await;
        opened = RedbStore::open(path).await;
    }
    opened
}
