//! Removes one rule or guard by hand: the same for both.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::{Faults, Pattern};
use damper_proto::v1;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::amplification::AmplificationChange;
use crate::write::request::{
    CompletedWrite, WriteRequest, all_or, check_expected, check_options, first_answer, read_key, write,
};
use crate::write::single::Effects;
use damper_store::writer::ProposedEdit;

/// What a removal came to.
pub(crate) struct DeletionResult {
    pub(crate) revision: u64,
    pub(crate) findings: Vec<v1::Finding>,
    /// What it does to what repeating can add; none of a guard.
    pub(crate) amplified: Option<AmplificationChange>,
}

/// Removes what has this key; `kind` says what that is.
pub(crate) async fn remove(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    key: Option<&v1::Pattern>,
    expected: Option<u64>,
    kind: fn(Pattern) -> ResourceKey,
) -> Result<DeletionResult, ApiError> {
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let subject = kind(all_or(read_key("key", key).map_err(ApiError::Faults), faults)?);
    asked.permit([&subject])?;
    let removal = Deletion { writes, asked, subject, expected };
    if let Some(first) = first_answer(writes, asked).await? {
        return removal.again(&first).await;
    }
    removal.carry_out().await
}

struct Deletion<'a> {
    writes: &'a Arc<Writes>,
    asked: &'a WriteRequest,
    subject: ResourceKey,
    expected: Option<u64>,
}

impl Deletion<'_> {
    async fn carry_out(&self) -> Result<DeletionResult, ApiError> {
        let Self { writes, asked, subject, expected } = self;
        let table = writes.fleet.table();
        let beside = self.judge(&table).await?;
        beside.chain.permit(&asked.options, |_| "key".to_owned()).map_err(ApiError::Faults)?;
        if asked.options.validate_only {
            check_expected(&table, subject, *expected)?;
            table.revision_of(subject).ok_or_else(|| self.missing())?;
            return Ok(self.removed(table.revision(), beside));
        }
        let done = write(writes, asked, &table, SystemTime::now(), vec![self.edit()]).await?;
        if done.committed.repeated {
            return self.again(&done).await;
        }
        self.done(&done, beside)
    }

    /// The answer to a request that was carried out before.
    async fn again(&self, first: &CompletedWrite) -> Result<DeletionResult, ApiError> {
        let beside = self.judge(&first.before).await?;
        self.done(first, beside)
    }

    fn done(
        &self,
        CompletedWrite { committed, .. }: &CompletedWrite,
        beside: Effects,
    ) -> Result<DeletionResult, ApiError> {
        if committed.unchanged {
            return Err(self.missing());
        }
        Ok(self.removed(committed.revision, beside))
    }

    fn removed(&self, revision: u64, mut beside: Effects) -> DeletionResult {
        let amplified = beside.amplified.take();
        DeletionResult { revision, findings: beside.findings(&self.subject).collect(), amplified }
    }

    async fn judge(&self, table: &Arc<Snapshot>) -> Result<Effects, ApiError> {
        Effects::of(self.writes, self.asked, table, (&self.subject, true), &self.edit()).await
    }

    fn edit(&self) -> ProposedEdit {
        ProposedEdit { key: self.subject.key(), value: None, expected: self.expected }
    }

    fn missing(&self) -> ApiError {
        ApiError::NotFound(format!("there is no {}", self.subject))
    }
}
