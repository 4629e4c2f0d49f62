//! Creates or replaces one guard.
//!
//! A guard is never refused for the rules that it cuts: it is the callee's owner who has the say. Which they are
//! is told, so that their owners can be.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;
use tonic::Request;

use crate::chain::{self, Judged};
use crate::errors::Error;
use crate::judgement::{self, Findings};
use crate::ownership;
use crate::reach::Survey;
use crate::requests::{Asked, Done, all_or, check_expected, check_options, first_answer, too_many, write};
use crate::shared::Shared;
use crate::table::{Guards, TableView};
use crate::writer::ProposedEdit;
use crate::written::WrittenGuard;

pub(super) async fn put(
    shared: &Arc<Shared>,
    request: Request<v1::PutGuardRequest>,
) -> Result<v1::PutGuardResponse, Error> {
    let (asked, request) = Asked::read("put guard", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let written = all_or(WrittenGuard::read("guard", request.guard), faults)?;
    let at = SystemTime::now();
    let edit = |before: &TableView| ProposedEdit {
        key: written.subject().key(),
        value: Some(written.value(before, &asked.options.author, at)),
        expected: request.expected_revision,
    };
    let again = async |first: Done| {
        let edit = edit(&first.before);
        let beside = Beside::of(shared, &asked, &written, &first.before, &edit).await?;
        Ok(response(shared, &written, &first, beside))
    };
    if let Some(first) = first_answer(shared, &asked).await? {
        return again(first).await;
    }
    let before = shared.table();
    let edit = edit(&before);
    let beside = Beside::of(shared, &asked, &written, &before, &edit).await?;
    beside.chain.permit(&asked.options, |_| "guard.ceiling".to_owned()).map_err(Error::Faults)?;
    if asked.options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision, beside);
    }
    let done = write(shared, &asked, &before, at, vec![edit]).await?;
    if done.committed.repeated {
        return again(done).await;
    }
    Ok(response(shared, &written, &done, beside))
}

/// What is found where a guard is put, besides what it says.
struct Beside {
    of_another: Option<v1::Finding>,
    chain: Judged,
}

impl Beside {
    async fn of(
        shared: &Arc<Shared>,
        asked: &Asked,
        written: &WrittenGuard,
        before: &Arc<TableView>,
        edit: &ProposedEdit,
    ) -> Result<Self, Error> {
        let of_another = ownership::of_guard(before, written, &asked.options.owner);
        let chain = chain::judge(shared, before, std::slice::from_ref(edit)).await?;
        Ok(Self { of_another, chain })
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
        return Err(too_many("guards", count + 1, limit));
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
    Beside { of_another, chain }: Beside,
    reach: &v1::RuleReach,
) -> Vec<v1::Finding> {
    let guards = Guards::only(Arc::new(written.stored()));
    let rules = table.iter().filter_map(|(_, stored)| stored.rule.as_deref());
    let cuts = rules.flat_map(|rule| judgement::cuts(&guards, rule));
    let beside = chain.findings_of(&written.subject()).into_iter().chain(of_another);
    Findings::all(beside.chain(judgement::of_guard(&written.guard, reach)).chain(cuts))
}
