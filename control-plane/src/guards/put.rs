//! Creates or replaces one guard.
//!
//! A guard is never refused for the rules that it cuts: it is the callee's owner who has the say. Which they are
//! is told, so that their owners can be.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use crate::chain::{self, Judged};
use crate::errors::Error;
use crate::judgement::{self, Findings};
use crate::ownership;
use crate::reach::Survey;
use crate::requests::{all_or, check_expected, check_options, digest_of, first_answer, too_many, write};
use crate::shared::Shared;
use crate::table::{Guards, TableView};
use crate::writer::{Committed, ProposedEdit};
use crate::written::WrittenGuard;

pub(super) async fn put(
    shared: &Shared,
    request: v1::PutGuardRequest,
) -> Result<v1::PutGuardResponse, Error> {
    let digest = digest_of("put guard", &request);
    let options = request.options.unwrap_or_default();
    let mut faults = Faults::none();
    check_options("options", &options, &mut faults);
    let written = all_or(WrittenGuard::read("guard", request.guard), faults)?;
    let before = shared.table();
    let of_another = ownership::of_guard(&before, &written, &options.owner);
    let at = SystemTime::now();
    let edit = ProposedEdit {
        key: written.subject().key(),
        value: Some(written.value(&before, &options.author, at)),
        expected: request.expected_revision,
    };
    let chain = chain::judge(shared, &before, std::slice::from_ref(&edit));
    if let Err(refused) = chain.permit(&options, |_| "guard.ceiling".to_owned()) {
        return match first_answer(shared, &options, digest).await? {
            Some((committed, table)) => {
                Ok(response(shared, &written, &committed, &table, of_another, &chain))
            }
            None => Err(Error::Faults(refused)),
        };
    }
    if options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision, of_another, &chain);
    }
    let (committed, table) = write(shared, &options, digest, at, vec![edit]).await?;
    Ok(response(shared, &written, &committed, &table, of_another, &chain))
}

fn response(
    shared: &Shared,
    written: &WrittenGuard,
    committed: &Committed,
    table: &TableView,
    of_another: Option<v1::Finding>,
    chain: &Judged,
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
        findings: findings(table, written, of_another, chain, &reach),
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
    of_another: Option<v1::Finding>,
    chain: &Judged,
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
        findings: findings(table, written, of_another, chain, &reach),
        changed: same.is_none(),
        reach: Some(reach),
    })
}

/// What deserves a look, and the rules that the guard cuts by itself.
fn findings(
    table: &TableView,
    written: &WrittenGuard,
    of_another: Option<v1::Finding>,
    chain: &Judged,
    reach: &v1::RuleReach,
) -> Vec<v1::Finding> {
    let guards = Guards::only(Arc::new(written.stored()));
    let rules = table.iter().filter_map(|(_, stored)| stored.rule.as_deref());
    let cuts = rules.flat_map(|rule| judgement::cuts(&guards, rule));
    let beside = chain.finding_of(&written.subject()).into_iter().chain(of_another);
    Findings::all(beside.chain(judgement::of_guard(&written.guard, reach)).chain(cuts))
}
