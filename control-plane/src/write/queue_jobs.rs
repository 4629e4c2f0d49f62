//! Jobs of deleted queues: without their queue they would wait for ever.
//!
//! A queue with jobs that have not ended is not deleted, unless the request purges them. The store is asked
//! before the write. With `purge_jobs` all jobs are deleted before the write, and again after it, since jobs
//! may be submitted in between. Without it, a job that is submitted meanwhile is held until a queue of this
//! name exists again.

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
    /// Returns the number of jobs of a queue that have not ended, as the store has it now.
    fn unended_jobs<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<u64, ApiError>>;
    /// Deletes jobs of a queue in any state, for a limited time. Returns their number, and true if there are
    /// more.
    fn purge_jobs<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<(u64, bool), ApiError>>;
}

/// Returns the queues among deleted resources.
pub(crate) fn queues<'s>(deleted: impl IntoIterator<Item = &'s ResourceKey>) -> Vec<String> {
    let queue = |subject: &ResourceKey| match subject {
        ResourceKey::Queue(name) => Some(name.clone()),
        _ => None,
    };
    deleted.into_iter().filter_map(queue).collect()
}

/// Errors if one of the deleted queues has jobs that have not ended, and the request does not purge them.
pub(crate) async fn check_deleted(
    jobs: &dyn QueueJobs,
    options: &v1::WriteOptions,
    queues: &[String],
) -> Result<(), ApiError> {
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

/// Deletes all jobs of queues that are about to be deleted. Errors if the time was too short: the same
/// request again continues. Returns the request for the write, which expects the revision after the records.
pub(crate) async fn purge(
    writes: &Arc<Writes>,
    mut asked: WriteRequest,
    queues: &[String],
) -> Result<WriteRequest, ApiError> {
    if !asked.options.purge_jobs {
        return Ok(asked);
    }
    // The deletions are recorded even if the request ends early.
    let (writes, queues) = (writes.clone(), queues.to_vec());
    let purging = tokio::spawn(async move {
        let began = Instant::now();
        for name in queues {
            if began.elapsed() > NEXT_WITHIN || purge_one(&writes, &mut asked, &name).await? {
                return Err(ApiError::Unmet(format!(
                    "queue {name} is not deleted yet: it has too many jobs to delete them in one request; \
                     repeat it for the rest"
                )));
            }
        }
        Ok(asked)
    });
    purging.await.map_err(|_| ApiError::Damaged("the deletion of jobs panicked".to_owned()))?
}

/// Deletes the jobs that were submitted until the queues were gone. An error is no failure of the request:
/// without a queue jobs are held.
pub(crate) async fn purge_rest(writes: &Arc<Writes>, asked: &WriteRequest, queues: &[String]) {
    if let Err(error) = purge(writes, asked.clone(), queues).await {
        tracing::warn!(%error, "jobs of a deleted queue are left");
    }
}

/// Deletes the jobs of one queue. Returns true if there are more.
async fn purge_one(writes: &Arc<Writes>, asked: &mut WriteRequest, name: &str) -> Result<bool, ApiError> {
    let (jobs, more) = writes.jobs.purge_jobs(name).await?;
    if jobs > 0 {
        let filter = Some(v1::JobFilter { queue: name.to_owned(), ..Default::default() });
        let kind = v1::JobActionKind::PurgeQueue.into();
        let action = v1::JobAction { kind, filter, jobs, more, ..Default::default() };
        let revision = record_done(writes, asked, action).await?;
        // The record itself is no change that the request did not expect.
        let head = &mut asked.options.expected_head;
        *head = head.map(|head| if head + 1 == revision { revision } else { head });
    }
    Ok(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use damper_core::Pattern;
    use futures_util::FutureExt as _;

    #[derive(Debug)]
    struct OneJob;

    impl QueueJobs for OneJob {
        fn unended_jobs<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<u64, ApiError>> {
            async move { Ok(u64::from(queue == "full")) }.boxed()
        }

        fn purge_jobs<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(u64, bool), ApiError>> {
            async { Ok((0, false)) }.boxed()
        }
    }

    #[tokio::test]
    async fn queue_with_unended_jobs_is_not_deleted() {
        let queue = |name: &str| ResourceKey::Queue(name.to_owned());
        let rule = ResourceKey::Rule(Pattern::parse("*", "*", "full", "*").unwrap());
        let others = [rule, queue("empty")];
        let keeps = v1::WriteOptions::default();
        assert!(check_deleted(&OneJob, &keeps, &queues(&others)).await.is_ok());
        let all = queues(others.iter().chain([&queue("full")]));
        let refused = check_deleted(&OneJob, &keeps, &all).await.unwrap_err();
        assert!(matches!(refused, ApiError::Unmet(_)));
        let text = refused.to_string();
        assert!(
            text.starts_with("queue full cannot be deleted: it has jobs that have not ended (1)"),
            "{text}"
        );
        let purges = v1::WriteOptions { purge_jobs: true, ..Default::default() };
        assert!(check_deleted(&OneJob, &purges, &all).await.is_ok());
    }
}
