//! Refuses to delete queues with jobs that have not ended: without their queue they would wait for ever.
//!
//! The check is made on this replica's snapshot before the write. A job that is submitted meanwhile is held
//! until a queue of this name exists again.

use std::fmt::Debug;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;

/// Jobs of the queues, as far as writes depend on them.
pub(crate) trait QueueJobs: Debug + Send + Sync {
    /// Returns the number of jobs of a queue that have not ended.
    fn unended_jobs(&self, queue: &str) -> u64;
}

/// Errors if one of the deleted resources is a queue with jobs that have not ended.
pub(crate) fn check_deleted<'s>(
    jobs: &dyn QueueJobs,
    deleted: impl IntoIterator<Item = &'s ResourceKey>,
) -> Result<(), ApiError> {
    for subject in deleted {
        let ResourceKey::Queue(name) = subject else { continue };
        let unended = jobs.unended_jobs(name);
        if unended > 0 {
            return Err(ApiError::Unmet(format!(
                "queue {name} cannot be deleted: it has jobs that have not ended ({unended}); wait for them, or \
                 cancel them with `damper jobs cancel`"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use damper_core::Pattern;

    #[derive(Debug)]
    struct OneJob;

    impl QueueJobs for OneJob {
        fn unended_jobs(&self, queue: &str) -> u64 {
            u64::from(queue == "full")
        }
    }

    #[test]
    fn queue_with_unended_jobs_is_not_deleted() {
        let queue = |name: &str| ResourceKey::Queue(name.to_owned());
        let rule = ResourceKey::Rule(Pattern::parse("*", "*", "full", "*").unwrap());
        let others = [rule, queue("empty")];
        assert!(check_deleted(&OneJob, &others).is_ok());
        let refused = check_deleted(&OneJob, others.iter().chain([&queue("full")])).unwrap_err();
        assert!(matches!(refused, ApiError::Unmet(_)));
        assert_eq!(
            refused.to_string(),
            "queue full cannot be deleted: it has jobs that have not ended (1); wait for them, or cancel them with `damper jobs cancel`"
        );
    }
}
