//! Durable jobs of this server: its job store, and the queues and kills that it applies to them.
//!
//! `damper-queue` schedules and keeps the jobs. A server without a job store still serves the settings of
//! queues.

pub(crate) mod open;
pub(crate) mod policies;
pub(crate) mod url;

use std::sync::{Arc, Weak};
use std::time::Duration;

use damper_queue::store::{Filter, Store};
use damper_queue::{JobChange, JobServer, Selection};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};

use crate::state::error::ApiError;
use crate::write::queue_jobs::QueueJobs;

/// Time for the last commit when the server stops.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// Longest wait for the job server to close a deleted queue, and time between two checks.
const CLOSED_QUEUE_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The jobs of this server.
#[derive(Debug)]
pub(crate) struct Jobs {
    server: Option<(JobServer, Weak<dyn Store>)>,
}

impl Jobs {
    /// A server without a job store.
    pub(crate) fn none() -> Self {
        Self { server: None }
    }

    pub(crate) fn over(store: &Arc<dyn Store>, server: JobServer) -> Self {
        Self { server: Some((server, Arc::downgrade(store))) }
    }

    /// Returns the job server; `None` without a job store.
    pub(crate) fn server(&self) -> Option<&JobServer> {
        self.server.as_ref().map(|(server, _)| server)
    }

    /// Returns the job server.
    pub(crate) fn required(&self) -> Result<&JobServer, ApiError> {
        self.server().ok_or_else(|| {
            ApiError::unavailable("jobs are disabled on this server: set its job store with --queues")
        })
    }

    /// Sends all workers a Goodbye. Their leases stay.
    pub(crate) fn stop(&self) {
        if let Some(server) = self.server() {
            server.shutdown();
        }
    }

    /// Commits what waits.
    pub(crate) async fn close(&self) {
        if let Some(server) = self.server()
            && timeout(CLOSED_WITHIN, server.close()).await.is_err()
        {
            tracing::warn!("the last commit of the job store timed out");
        }
    }

    /// Returns the store, to wait until it is no longer used.
    pub(crate) fn store(&self) -> Option<Weak<dyn Store>> {
        self.server.as_ref().map(|(_, store)| store.clone())
    }
}

impl QueueJobs for Jobs {
    fn has_store(&self) -> bool {
        self.server.is_some()
    }

    fn unended_jobs<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<u64, ApiError>> {
        async move { Ok(self.required()?.unended(queue).await?) }.boxed()
    }

    fn purge_jobs<'a>(
        &'a self,
        queue: &'a str,
        only_count: bool,
    ) -> BoxFuture<'a, Result<(u64, bool), ApiError>> {
        async move {
            let server = self.required()?;
            let filter = Filter { queue: queue.to_owned(), ..Filter::default() };
            let selection = Selection { filter, ..Selection::default() };
            if !only_count {
                closed(server, queue).await;
            }
            let changed = server.change(selection, JobChange::Remove, only_count).await?;
            Ok((changed.jobs, changed.more))
        }
        .boxed()
    }
}

/// Waits until a deleted queue accepts and delivers nothing more. The snapshot reaches the job server within
/// milliseconds.
async fn closed(server: &JobServer, queue: &str) {
    let began = Instant::now();
    while server.has_policy(queue) && began.elapsed() < CLOSED_QUEUE_WITHIN {
        sleep(LOOK_EVERY).await;
    }
}

/// Errors of the job store.
impl From<damper_queue::store::Error> for ApiError {
    fn from(error: damper_queue::store::Error) -> Self {
        use damper_queue::store::Error;
        match error {
            Error::Unavailable(_) => Self::Unavailable { reason: error.to_string(), outcome_known: false },
            Error::Full(_) => Self::JobStoreFull(error.to_string()),
            Error::Open(_) => Self::unavailable(error.to_string()),
            Error::Invalid(reason) => Self::fault("", reason),
            Error::Damaged(_) => Self::Damaged(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use damper_queue::store::Error;
    use tonic::{Code, Status};

    use crate::state::error::ApiError;

    #[test]
    fn full_job_store_is_resource_exhausted() {
        let error = Error::Full("PostgreSQL has no disk space left (SQLSTATE 53100)".to_owned());
        let status = Status::from(ApiError::from(error));
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text = "the job store is full: PostgreSQL has no disk space left (SQLSTATE 53100)";
        assert_eq!(status.message(), text);
    }
}
