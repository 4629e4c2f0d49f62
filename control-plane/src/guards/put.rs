//! Creates or replaces one guard.
//!
//! A guard is never refused for the rules that it cuts: it is the callee's owner who has the say. Which they are
//! is told, so that their owners can be.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;
use tonic::Request;

use crate::by_hand::{self, Beside, Outcome, Put};
use crate::chain::Judged;
use crate::errors::Error;
use crate::judgement::{self, Findings};
use crate::limits::Limit;
use crate::reach::Survey;
use crate::requests::{Asked, Done, all_or, check_expected, check_options, too_many};
use crate::shared::Shared;
use crate::table::{Guards, Subject, TableView};
use crate::written::WrittenGuard;

pub(super) async fn put(
    shared: &Arc<Shared>,
    request: Request<v1::PutGuardRequest>,
) -> Result<v1::PutGuardResponse, Error> {
    let (asked, request) = Asked::read("put guard", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let written = all_or(WrittenGuard::read("guard", request.guard), faults)?;
    match by_hand::put(shared, &asked, &written, request.expected_revision).await? {
        Outcome::Tried(table, beside) => try_out(shared, &table, &written, request.expected_revision, beside),
        Outcome::Written(done, beside) => Ok(response(shared, &written, &done, beside)),
    }
}

/// What a put would answer, whoever asks.
pub(super) async fn judge(
    shared: &Arc<Shared>,
    request: v1::JudgeGuardRequest,
) -> Result<v1::PutGuardResponse, Error> {
    let written = WrittenGuard::read("guard", request.guard)?;
    let beside = by_hand::judge(shared, &written).await?;
    try_out(shared, &shared.table(), &written, None, beside)
}

impl Put for WrittenGuard {
    fn subject(&self) -> Subject {
        self.subject()
    }

    fn changes(&self, table: &TableView) -> bool {
        self.unchanged(table).is_none()
    }

    fn value(&self, table: &TableView, author: &str, at: SystemTime) -> bytes::Bytes {
        self.value(table, author, at)
    }

    fn permit(&self, _: &TableView, chain: &Judged, options: &v1::WriteOptions) -> Result<(), Error> {
        chain.permit(options, |_| "guard.ceiling".to_owned()).map_err(Error::Faults)
    }
}

fn response(
    shared: &Shared,
    written: &WrittenGuard,
    Done { committed, after: table, .. }: &Done,
    beside: Beside,
) -> v1::PutGuardResponse {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.guards().stored(written.guard.pattern());
    let stored = stored.filter(|stored| stored.wire.revision == revision);
    let guard =
        stored.map_or_else(|| v1::Guard { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    let reach = Survey::of(shared).reach_of_guard(written.guard.pattern());
    v1::PutGuardResponse {
        guard: Some(guard),
        revision: committed.revision,
        findings: findings(table, written, beside, &reach),
        changed: !committed.unchanged,
        reach: Some(reach),
    }
}

/// What a put would answer.
fn try_out(
    shared: &Shared,
    table: &TableView,
    written: &WrittenGuard,
    expected: Option<u64>,
    beside: Beside,
) -> Result<v1::PutGuardResponse, Error> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let (count, limit) = (table.guards().len(), shared.settings.max_guards);
    if table.revision_of(&subject).is_none() && count >= limit {
        return Err(too_many(Limit::Guards, count + 1, limit));
    }
    let same = written.unchanged(table);
    let reach = Survey::of(shared).reach_of_guard(written.guard.pattern());
    Ok(v1::PutGuardResponse {
        guard: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        findings: findings(table, written, beside, &reach),
        changed: same.is_none(),
        reach: Some(reach),
    })
}

/// What deserves a look, and the rules that the guard cuts by itself.
fn findings(
    table: &TableView,
    written: &WrittenGuard,
    beside: Beside,
    reach: &v1::RuleReach,
) -> Vec<v1::Finding> {
    let guards = Guards::only(Arc::new(written.stored()));
    let rules = table.iter().filter_map(|(_, stored)| stored.rule.as_deref());
    let cuts = rules.flat_map(|rule| judgement::cuts(&guards, rule));
    let beside = beside.findings(&written.subject());
    Findings::all(beside.chain(judgement::of_guard(&written.guard, reach)).chain(cuts))
}
