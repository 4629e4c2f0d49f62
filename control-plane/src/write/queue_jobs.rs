//! Jobs of deleted queues: without their queue they would wait for ever.
//!
//! A queue with jobs that have not ended is not deleted, unless the request purges them. The job store is
//! asked before the write, so a server without one does not delete queues. With `purge_jobs` the deletion of
//! the queue is committed first, and its jobs are deleted after it: a deletion that fails deletes no job, and
//! nothing is submitted to a queue that is gone. If jobs are left then, the error names the request that
//! deletes them. A job that is submitted while its queue is deleted is held until a queue of this name exists
//! again, or is purged in the same way.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use damper_proto::v1;
use futures_util::future::BoxFuture;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::job_action::record_done;
use crate::write::request::WriteRequest;

/// Time after which the jobs of no further queue are purged in the same request.
const NEXT_WITHIN: Duration = Duration::from_secs(5);

/// Jobs of the queues, as far as writes depend on them.
pub(crate) trait QueueJobs: Debug + Send + Sync {
    /// Returns true if this server has a job store.
    fn has_store(&self) -> bool;
    /// Returns the number of jobs of a queue that have not ended, as the store has it now.
    fn unended_jobs<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<u64, ApiError>>;
    /// Deletes jobs of a queue in any state, for a limited time, or only counts them. Returns their number,
    /// and true if there are more.
    fn purge_jobs<'a>(
        &'a self,
        queue: &'a str,
        only_count: bool,
    ) -> BoxFuture<'a, Result<(u64, bool), ApiError>>;
}

/// Returns the queues among deleted resources.
pub(crate) fn queues<'s>(deleted: impl IntoIterator<Item = &'s ResourceKey>) -> Vec<String> {
    let queue = |subject: &ResourceKey| match subject {
        ResourceKey::Queue(name) => Some(name.clone()),
        _ => None,
    };
    deleted.into_iter().filter_map(queue).collect()
}

/// Errors if one of the deleted queues has jobs that have not ended, and the request does not purge them, or
/// if this server cannot know that.
pub(crate) async fn check_deleted(
    jobs: &dyn QueueJobs,
    options: &v1::WriteOptions,
    queues: &[String],
) -> Result<(), ApiError> {
    if let [name, ..] = queues
        && !jobs.has_store()
    {
        return check_without_store(name, options);
    }
    if options.purge_jobs {
        return Ok(());
    }
    for name in queues {
        let unended = jobs.unended_jobs(name).await?;
        if unended > 0 {
            return Err(ApiError::Unmet(format!(
                "queue {name} cannot be deleted: it has jobs that have not ended ({unended}); wait for them, \
                 cancel them with `damper jobs cancel`, or delete them with the queue by --purge"
            )));
        }
    }
    Ok(())
}

/// Errors unless the request accepts that jobs of the queue may be left.
fn check_without_store(name: &str, options: &v1::WriteOptions) -> Result<(), ApiError> {
    let (problem, otherwise) = match options {
        v1::WriteOptions { purge_jobs: true, .. } => ("cannot delete its jobs", ""),
        v1::WriteOptions { force: true, .. } => return Ok(()),
        _ => ("does not know whether it has jobs that have not ended", ", or delete it anyway by --force"),
    };
    Err(ApiError::Unmet(format!(
        "queue {name} cannot be deleted here: this server has no job store (--queues) and {problem}; \
         use a server that has it{otherwise}"
    )))
}

/// Deletes all jobs of queues whose deletion is committed at this revision, if the request purges them.
/// Errors if jobs are left, with what deletes them, or if the history could not record a purge that was
/// carried out. Can be repeated: a queue that exists again is left as it is.
pub(crate) async fn purge(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    queues: Vec<String>,
    revision: u64,
) -> Result<(), ApiError> {
    if !asked.options.purge_jobs || queues.is_empty() {
        return Ok(());
    }
    // The deletions are recorded even if the request ends early.
    let (writes, asked) = (writes.clone(), asked.clone());
    let purging = tokio::spawn(async move {
        let began = Instant::now();
        for (i, name) in queues.iter().enumerate() {
            let table = writes.fleet.table();
            let exists = table.revision_of(&ResourceKey::Queue(name.clone())).is_some();
            let problem = if table.revision() < revision {
                "this server has not read the deletion of the queue back yet".to_owned()
            } else if exists {
                continue;
            } else if began.elapsed() > NEXT_WITHIN {
                TOO_MANY.to_owned()
            } else {
                match writes.jobs.purge_jobs(name, false).await {
                    Ok((jobs, more)) => {
                        record_purge(&writes, &asked, name, jobs, more).await?;
                        if !more {
                            continue;
                        }
                        TOO_MANY.to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            };
            return Err(left(&queues[i..], revision, &problem));
        }
        Ok(())
    });
    purging.await.map_err(|_| ApiError::Damaged("the deletion of jobs panicked".to_owned()))?
}

/// Why jobs are left if nothing has failed.
const TOO_MANY: &str = "there are too many to delete them in one request";

/// Returns the error for queues that are deleted, and jobs of them that are not.
fn left(queues: &[String], revision: u64, problem: &str) -> ApiError {
    let commands = queues.iter().map(|name| format!("`damper queues delete {name} --purge`"));
    ApiError::Unmet(format!(
        "the queue was deleted at revision {revision}, but some of its jobs remain ({problem}); delete them with {}",
        commands.collect::<Vec<_>>().join(", ")
    ))
}

/// Records that jobs of a queue were deleted.
async fn record_purge(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    queue: &str,
    jobs: u64,
    more: bool,
) -> Result<(), ApiError> {
    if jobs > 0 {
        let filter = Some(v1::JobFilter { queue: queue.to_owned(), ..Default::default() });
        let kind = v1::JobActionKind::PurgeQueue.into();
        let action = v1::JobAction { kind, filter, jobs, more, ..Default::default() };
        record_done(writes, asked, action).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
