//! One rule or guard put by hand: the same steps for both.
//!
//! Tried, judged by the chain, permitted, written, and answered as it was first where the request is a repeat. What
//! differs between a rule and a guard is the caller's: what may be put, and what the answer says.

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;

use crate::chain::{self, Amplified, Judged};
use crate::errors::Error;
use crate::ownership;
use crate::requests::{Asked, Done, first_answer, write};
use crate::shared::Shared;
use crate::table::{Subject, TableView};
use crate::writer::ProposedEdit;

/// A rule or guard as somebody wants it stored.
pub(crate) trait Put {
    fn subject(&self) -> Subject;
    /// True if the table does not have it just so.
    fn changes(&self, table: &TableView) -> bool;
    /// What is to be stored.
    fn value(&self, table: &TableView, author: &str, at: SystemTime) -> bytes::Bytes;
    /// Refuses what may not be put.
    fn permit(&self, before: &TableView, chain: &Judged, options: &v1::WriteOptions) -> Result<(), Error>;
}

/// What a put came to, and what is found besides what the rule or guard says.
pub(crate) enum Outcome {
    /// It was only tried, over this table.
    Tried(Arc<TableView>, Beside),
    /// It is written, now or when it was first asked for.
    Written(Done, Beside),
}

/// What is found where a rule or guard is written, besides what it says.
pub(crate) struct Beside {
    of_another: Option<v1::Finding>,
    pub(crate) chain: Judged,
    /// What it does to what repeating can add; none of a guard.
    pub(crate) amplified: Option<Amplified>,
}

impl Beside {
    /// What an edit makes of a table; only one that `changes` something is told to belong to another.
    pub(crate) async fn of(
        shared: &Arc<Shared>,
        asked: &Asked,
        before: &Arc<TableView>,
        (subject, changes): (&Subject, bool),
        edit: &ProposedEdit,
    ) -> Result<Self, Error> {
        let of_another = changes.then(|| ownership::finding(before, subject, &asked.options.owner)).flatten();
        let (chain, amplified) = chain::judge_one(shared, before, edit).await?;
        Ok(Self { of_another, chain, amplified })
    }

    /// All of it.
    pub(crate) fn findings(self, subject: &Subject) -> impl Iterator<Item = v1::Finding> + use<> {
        self.chain.findings_of(subject).into_iter().chain(self.of_another)
    }
}

/// What is found in it, for those who may not put it too.
pub(crate) async fn judge(shared: &Arc<Shared>, wanted: &impl Put) -> Result<Beside, Error> {
    let (asked, before, subject) =
        (Asked::by_itself(v1::WriteOptions::default()), shared.table(), wanted.subject());
    let value = Some(wanted.value(&before, "", SystemTime::now()));
    let edit = ProposedEdit { key: subject.key(), value, expected: None };
    let beside = Beside::of(shared, &asked, &before, (&subject, false), &edit).await?;
    wanted.permit(&before, &beside.chain, &asked.options)?;
    Ok(beside)
}

/// Puts it, or tries to.
pub(crate) async fn put(
    shared: &Arc<Shared>,
    asked: &Asked,
    wanted: &impl Put,
    expected: Option<u64>,
) -> Result<Outcome, Error> {
    let (at, subject) = (SystemTime::now(), wanted.subject());
    asked.permit([&subject])?;
    let edit = |before: &TableView| {
        let value = Some(wanted.value(before, &asked.author(), at));
        ProposedEdit { key: subject.key(), value, expected }
    };
    let judge = async |before: &Arc<TableView>| {
        let changes = wanted.changes(before);
        Beside::of(shared, asked, before, (&subject, changes), &edit(before)).await
    };
    if let Some(first) = first_answer(shared, asked).await? {
        let beside = judge(&first.before).await?;
        return Ok(Outcome::Written(first, beside));
    }
    let before = shared.table();
    let beside = judge(&before).await?;
    wanted.permit(&before, &beside.chain, &asked.options)?;
    if asked.options.validate_only {
        return Ok(Outcome::Tried(before, beside));
    }
    let done = write(shared, asked, &before, at, vec![edit(&before)]).await?;
    let beside = if done.committed.repeated { judge(&done.before).await? } else { beside };
    Ok(Outcome::Written(done, beside))
}
