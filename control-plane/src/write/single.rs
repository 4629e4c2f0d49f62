//! One rule or guard put by hand: the same steps for both.
//!
//! Tried, judged by the chain, permitted, written, and answered as it was first where the request is a repeat. What
//! differs between a rule and a guard is the caller's: what may be put, and what the answer says.

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::amplification::AmplificationChange;
use crate::write::chain_limit;
use crate::write::chain_limit::ChainCheck;
use crate::write::ownership;
use crate::write::request::{CompletedWrite, WriteRequest, first_answer, write};
use damper_store::writer::ProposedEdit;

/// A rule or guard as somebody wants it stored.
pub(crate) trait SingleWrite {
    fn subject(&self) -> ResourceKey;
    /// True if the table does not have it just so.
    fn changes(&self, table: &Snapshot) -> bool;
    /// What is to be stored.
    fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes;
    /// Refuses what may not be put.
    fn permit(
        &self,
        before: &Snapshot,
        chain: &ChainCheck,
        options: &v1::WriteOptions,
    ) -> Result<(), ApiError>;
}

/// What a put came to, and what is found besides what the rule or guard says.
pub(crate) enum SingleWriteResult {
    /// It was only tried, over this table.
    Tried(Arc<Snapshot>, Effects),
    /// It is written, now or when it was first asked for.
    Written(CompletedWrite, Effects),
}

/// What is found where a rule or guard is written, besides what it says.
pub(crate) struct Effects {
    of_another: Option<v1::Finding>,
    pub(crate) chain: ChainCheck,
    /// What it does to what repeating can add; none of a guard.
    pub(crate) amplified: Option<AmplificationChange>,
}

impl Effects {
    /// What an edit makes of a table; only one that `changes` something is told to belong to another.
    pub(crate) async fn of(
        writes: &Arc<Writes>,
        asked: &WriteRequest,
        before: &Arc<Snapshot>,
        (subject, changes): (&ResourceKey, bool),
        edit: &ProposedEdit,
    ) -> Result<Self, ApiError> {
        let of_another = changes.then(|| ownership::finding(before, subject, &asked.options.owner)).flatten();
        let (chain, amplified) = chain_limit::judge_one(writes, before, edit).await?;
        Ok(Self { of_another, chain, amplified })
    }

    /// All of it.
    pub(crate) fn findings(self, subject: &ResourceKey) -> impl Iterator<Item = v1::Finding> + use<> {
        self.chain.findings_of(subject).into_iter().chain(self.of_another)
    }
}

/// What is found in it, for those who may not put it too.
pub(crate) async fn judge(writes: &Arc<Writes>, wanted: &impl SingleWrite) -> Result<Effects, ApiError> {
    let (asked, before, subject) =
        (WriteRequest::by_itself(v1::WriteOptions::default()), writes.fleet.table(), wanted.subject());
    let value = Some(wanted.value(&before, "", SystemTime::now()));
    let edit = ProposedEdit { key: subject.key(), value, expected: None };
    let beside = Effects::of(writes, &asked, &before, (&subject, false), &edit).await?;
    wanted.permit(&before, &beside.chain, &asked.options)?;
    Ok(beside)
}

/// Puts it, or tries to.
pub(crate) async fn put(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    wanted: &impl SingleWrite,
    expected: Option<u64>,
) -> Result<SingleWriteResult, ApiError> {
    let (at, subject) = (SystemTime::now(), wanted.subject());
    asked.permit([&subject])?;
    let edit = |before: &Snapshot| {
        let value = Some(wanted.value(before, &asked.author(), at));
        ProposedEdit { key: subject.key(), value, expected }
    };
    let judge = async |before: &Arc<Snapshot>| {
        let changes = wanted.changes(before);
        Effects::of(writes, asked, before, (&subject, changes), &edit(before)).await
    };
    if let Some(first) = first_answer(writes, asked).await? {
        let beside = judge(&first.before).await?;
        return Ok(SingleWriteResult::Written(first, beside));
    }
    let before = writes.fleet.table();
    let beside = judge(&before).await?;
    wanted.permit(&before, &beside.chain, &asked.options)?;
    if asked.options.validate_only {
        return Ok(SingleWriteResult::Tried(before, beside));
    }
    let done = write(writes, asked, &before, at, vec![edit(&before)]).await?;
    let beside = if done.committed.repeated { judge(&done.before).await? } else { beside };
    Ok(SingleWriteResult::Written(done, beside))
}
