//! Deletes one rule, guard or queue, the same for all.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;
use damper_store::writer::ProposedEdit;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::amplification::AmplificationChange;
use crate::write::queue_jobs;
use crate::write::request::{
    CompletedWrite, WriteRequest, all_or, check_expected, check_options, stored_answer, write,
};
use crate::write::single::Effects;

/// The result of a deletion.
pub(crate) struct DeletionResult {
    pub(crate) revision: u64,
    pub(crate) findings: Vec<v1::Finding>,
    /// The change of the amplification; `None` if the deletion is not of a rule.
    pub(crate) amplified: Option<AmplificationChange>,
}

/// Deletes the resource with this key, which was read from the request.
pub(crate) async fn remove(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    key: Result<ResourceKey, Faults>,
    expected: Option<u64>,
) -> Result<DeletionResult, ApiError> {
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let subject = all_or(key.map_err(ApiError::Faults), faults)?;
    asked.permit([&subject])?;
    let deletion = Deletion { writes, asked, subject, expected };
    if let Some(first) = stored_answer(writes, asked).await? {
        return deletion.answer_repeated(&first).await;
    }
    deletion.delete().await
}

struct Deletion<'a> {
    writes: &'a Arc<Writes>,
    asked: &'a WriteRequest,
    subject: ResourceKey,
    expected: Option<u64>,
}

impl Deletion<'_> {
    async fn delete(&self) -> Result<DeletionResult, ApiError> {
        let Self { writes, asked, subject, expected } = self;
        let table = writes.fleet.table();
        let effects = self.effects(&table).await?;
        effects.chain.permit(&asked.options, |_| "key".to_owned()).map_err(ApiError::Faults)?;
        let queues = queue_jobs::queues([subject]);
        queue_jobs::check_deleted(&*writes.jobs, &asked.options, &queues).await?;
        if asked.options.purge_jobs && !queues.is_empty() && table.revision_of(subject).is_none() {
            return self.purge_missing(&table, queues, effects).await;
        }
        if asked.options.validate_only {
            check_expected(&table, subject, *expected)?;
            table.revision_of(subject).ok_or_else(|| self.missing())?;
            return Ok(self.removed(table.revision(), effects));
        }
        let done = write(writes, asked, &table, SystemTime::now(), vec![self.edit()]).await?;
        if done.committed.repeated {
            return self.answer_repeated(&done).await;
        }
        self.purge(&done).await?;
        self.done(&done, effects)
    }

    /// Deletes the jobs that are left of a queue that was deleted before.
    async fn purge_missing(
        &self,
        table: &Snapshot,
        queues: Vec<String>,
        effects: Effects,
    ) -> Result<DeletionResult, ApiError> {
        let Self { writes, asked, subject, expected } = self;
        check_expected(table, subject, *expected)?;
        for name in &queues {
            let (jobs, more) = writes.jobs.purge_jobs(name, true).await?;
            if jobs == 0 && !more {
                return Err(self.missing());
            }
        }
        let revision = table.revision();
        if !asked.options.validate_only {
            queue_jobs::purge(writes, asked, queues, revision).await?;
        }
        Ok(self.removed(revision, effects))
    }

    /// Deletes the jobs of a deleted queue, if the request asks for it.
    async fn purge(&self, done: &CompletedWrite) -> Result<(), ApiError> {
        let queues = queue_jobs::queues([&self.subject]);
        queue_jobs::purge(self.writes, self.asked, queues, done.committed.revision).await
    }

    /// Answers a request that was committed before.
    async fn answer_repeated(&self, first: &CompletedWrite) -> Result<DeletionResult, ApiError> {
        self.purge(first).await?;
        let effects = self.effects(&first.before).await?;
        self.done(first, effects)
    }

    fn done(
        &self,
        CompletedWrite { committed, .. }: &CompletedWrite,
        effects: Effects,
    ) -> Result<DeletionResult, ApiError> {
        if committed.unchanged {
            return Err(self.missing());
        }
        Ok(self.removed(committed.revision, effects))
    }

    fn removed(&self, revision: u64, mut effects: Effects) -> DeletionResult {
        let amplified = effects.amplified.take();
        DeletionResult { revision, findings: effects.findings(&self.subject).collect(), amplified }
    }

    async fn effects(&self, table: &Arc<Snapshot>) -> Result<Effects, ApiError> {
        Effects::new(self.writes, self.asked, table, (&self.subject, true), &self.edit()).await
    }

    fn edit(&self) -> ProposedEdit {
        ProposedEdit { key: self.subject.key(), value: None, expected: self.expected }
    }

    fn missing(&self) -> ApiError {
        ApiError::NotFound(format!("there is no {}", self.subject))
    }
}
