//! Writes one rule, guard or queue, with the same steps for all.
//!
//! The steps: try, check along the chain, authorize, write, answer. A repeated request gets its stored
//! answer. The callers differ only in what may be put and in the response.

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
use damper_store::writer::ProposedEdit;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::amplification::AmplificationChange;
use crate::write::chain_limit;
use crate::write::chain_limit::ChainCheck;
use crate::write::findings;
use crate::write::ownership;
use crate::write::request::{CompletedWrite, WriteRequest, stored_answer, write};

/// A rule, guard or queue to be stored.
pub(crate) trait SingleWrite {
    fn subject(&self) -> ResourceKey;
    /// True if the snapshot does not contain exactly this value.
    fn changes(&self, table: &Snapshot) -> bool;
    /// Returns the value to store.
    fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes;
    /// Errors if the resource may not be put.
    fn permit(
        &self,
        before: &Snapshot,
        chain: &ChainCheck,
        options: &v1::WriteOptions,
    ) -> Result<(), ApiError>;
}

/// The result of a put, with its effects beyond the resource itself.
pub(crate) enum SingleWriteResult {
    /// A dry run over this snapshot.
    Tried(Arc<Snapshot>, Effects),
    /// A committed write, from this request or from an earlier one with the same id.
    Written(CompletedWrite, Effects),
}

/// The effects of a write beyond the resource itself.
pub(crate) struct Effects {
    owned_by_another: Option<v1::Finding>,
    displaces: Option<v1::Finding>,
    pub(crate) chain: ChainCheck,
    /// The change of the amplification; `None` if the write is not about a rule.
    pub(crate) amplified: Option<AmplificationChange>,
}

impl Effects {
    /// Returns the effects of an edit on a snapshot. The finding about another owner requires that the edit
    /// `changes` something.
    pub(crate) async fn new(
        writes: &Arc<Writes>,
        asked: &WriteRequest,
        before: &Arc<Snapshot>,
        (subject, changes): (&ResourceKey, bool),
        edit: &ProposedEdit,
    ) -> Result<Self, ApiError> {
        let owned_by_another =
            changes.then(|| ownership::finding(before, subject, &asked.options.owner)).flatten();
        let displaces = match subject {
            ResourceKey::Rule(pattern) => {
                let tried = before.tried(std::slice::from_ref(edit));
                let rule = tried.stored(pattern).and_then(|stored| stored.rule.as_ref());
                rule.and_then(|rule| findings::displaces(before, rule))
            }
            _ => None,
        };
        let (chain, amplified) = chain_limit::check_edit(writes, before, edit).await?;
        Ok(Self { owned_by_another, displaces, chain, amplified })
    }

    /// Returns all findings.
    pub(crate) fn findings(self, subject: &ResourceKey) -> impl Iterator<Item = v1::Finding> + use<> {
        self.chain.findings_of(subject).into_iter().chain(self.owned_by_another).chain(self.displaces)
    }
}

/// Returns the effects of a rule or guard without a write, also for callers without permission to put it.
pub(crate) async fn check(writes: &Arc<Writes>, wanted: &impl SingleWrite) -> Result<Effects, ApiError> {
    let (asked, before, subject) =
        (WriteRequest::internal(v1::WriteOptions::default()), writes.fleet.table(), wanted.subject());
    let value = Some(wanted.value(&before, "", SystemTime::now()));
    let edit = ProposedEdit { key: subject.key(), value, expected: None };
    let effects = Effects::new(writes, &asked, &before, (&subject, false), &edit).await?;
    wanted.permit(&before, &effects.chain, &asked.options)?;
    Ok(effects)
}

/// Puts the resource, or tries to.
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
    let effects_on = async |before: &Arc<Snapshot>| {
        let changes = wanted.changes(before);
        Effects::new(writes, asked, before, (&subject, changes), &edit(before)).await
    };
    if let Some(first) = stored_answer(writes, asked).await? {
        let effects = effects_on(&first.before).await?;
        return Ok(SingleWriteResult::Written(first, effects));
    }
    let before = writes.fleet.table();
    let effects = effects_on(&before).await?;
    wanted.permit(&before, &effects.chain, &asked.options)?;
    if asked.options.validate_only {
        return Ok(SingleWriteResult::Tried(before, effects));
    }
    let done = write(writes, asked, &before, at, vec![edit(&before)]).await?;
    let effects = if done.committed.repeated { effects_on(&done.before).await? } else { effects };
    Ok(SingleWriteResult::Written(done, effects))
}
