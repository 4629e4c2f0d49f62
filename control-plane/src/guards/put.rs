//! Creates or replaces one guard.
//!
//! A guard is never refused for the rules that it cuts: it is the callee's owner who has the say. Which they are
//! is told, so that their owners can be.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use crate::errors::Error;
use crate::judgement::{self, Findings};
use crate::ownership;
use crate::reach::Survey;
use crate::requests::{all_or, check_expected, check_options, digest_of, too_many, write};
use crate::shared::Shared;
use crate::table::{Guards, TableView};
use crate::writer::ProposedEdit;
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
    if options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision, of_another);
    }
    let at = SystemTime::now();
    let edit = ProposedEdit {
        key: written.subject().key(),
        value: Some(written.value(&before, &options.author, at)),
        expected: request.expected_revision,
    };
    let (committed, table) = write(shared, &options, digest, at, vec![edit]).await?;
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.guards().stored(written.guard.pattern());
    let stored = stored.filter(|stored| stored.wire.revision == revision);
    let guard =
        stored.map_or_else(|| v1::Guard { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    Ok(v1::PutGuardResponse {
        guard: Some(guard),
        revision: committed.revision,
        findings: findings(&table, &written, of_another),
        changed: !committed.unchanged,
        reach: Some(Survey::of(shared).reach_of_guard(written.guard.pattern())),
    })
}

/// What a put would answer.
fn try_out(
    shared: &Shared,
    table: &TableView,
    written: &WrittenGuard,
    expected: Option<u64>,
    of_another: Option<v1::Finding>,
) -> Result<v1::PutGuardResponse, Error> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let (count, limit) = (table.guards().len(), shared.settings.max_guards);
    if table.revision_of(&subject).is_none() && count >= limit {
        return Err(too_many("guards", count + 1, limit));
    }
    let same = written.unchanged(table);
    Ok(v1::PutGuardResponse {
        guard: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        findings: findings(table, written, of_another),
        changed: same.is_none(),
        reach: Some(Survey::of(shared).reach_of_guard(written.guard.pattern())),
    })
}

/// The rules that the guard cuts, by itself.
fn findings(
    table: &TableView,
    written: &WrittenGuard,
    of_another: Option<v1::Finding>,
) -> Vec<v1::Finding> {
    let guards = Guards::only(Arc::new(written.stored()));
    let rules = table.iter().filter_map(|(_, stored)| stored.rule.as_deref());
    let cuts = rules.flat_map(|rule| judgement::cuts(&guards, rule));
    Findings::all(of_another.into_iter().chain(cuts))
}
