//! Creates or replaces one guard.
//!
//! A guard is never rejected for the rules that it cuts, because the callee owner decides. The response lists
//! the rules, so that their owners can be informed.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_net::limits::Limit;
use damper_proto::v1;
use tonic::Request;

use crate::state::error::ApiError;
use crate::state::guards::GuardTable;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::chain_limit::ChainCheck;
use crate::write::findings;
use crate::write::findings::FindingList;
use crate::write::reach::ReachSurvey;
use crate::write::request::{CompletedWrite, WriteRequest, all_or, check_expected, check_options, too_many};
use crate::write::resource::NewGuard;
use crate::write::single;
use crate::write::single::{Effects, SingleWrite, SingleWriteResult};

pub(crate) async fn put(
    writes: &Arc<Writes>,
    request: Request<v1::PutGuardRequest>,
) -> Result<v1::PutGuardResponse, ApiError> {
    let (asked, request) = WriteRequest::read("put guard", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let written = all_or(NewGuard::read("guard", request.guard), faults)?;
    match single::put(writes, &asked, &written, request.expected_revision).await? {
        SingleWriteResult::Tried(table, effects) => {
            try_out(writes, &table, &written, request.expected_revision, effects)
        }
        SingleWriteResult::Written(done, effects) => Ok(response(writes, &written, &done, effects)),
    }
}

/// Returns the response to a put without writing, for every caller.
pub(crate) async fn check(
    writes: &Arc<Writes>,
    request: v1::JudgeGuardRequest,
) -> Result<v1::PutGuardResponse, ApiError> {
    let written = NewGuard::read("guard", request.guard)?;
    let effects = single::check(writes, &written).await?;
    try_out(writes, &writes.fleet.table(), &written, None, effects)
}

impl SingleWrite for NewGuard {
    fn subject(&self) -> ResourceKey {
        self.subject()
    }

    fn changes(&self, table: &Snapshot) -> bool {
        self.unchanged(table).is_none()
    }

    fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes {
        self.value(table, author, at)
    }

    fn permit(&self, _: &Snapshot, chain: &ChainCheck, options: &v1::WriteOptions) -> Result<(), ApiError> {
        chain.permit(options, |_| "guard.ceiling".to_owned()).map_err(ApiError::Faults)
    }
}

fn response(
    writes: &Writes,
    written: &NewGuard,
    CompletedWrite { committed, after: table, .. }: &CompletedWrite,
    effects: Effects,
) -> v1::PutGuardResponse {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.guards().stored(written.guard.pattern());
    let stored = stored.filter(|stored| stored.wire.revision == revision);
    let guard =
        stored.map_or_else(|| v1::Guard { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    let reach = ReachSurvey::new(&writes.fleet).reach_of_guard(written.guard.pattern());
    v1::PutGuardResponse {
        guard: Some(guard),
        revision: committed.revision,
        findings: findings(table, written, effects, &reach),
        changed: !committed.unchanged,
        reach: Some(reach),
    }
}

/// Returns the response to a dry run.
fn try_out(
    writes: &Writes,
    table: &Snapshot,
    written: &NewGuard,
    expected: Option<u64>,
    effects: Effects,
) -> Result<v1::PutGuardResponse, ApiError> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let (count, limit) = (table.guards().len(), writes.limits.max_guards);
    if table.revision_of(&subject).is_none() && count >= limit {
        return Err(too_many(Limit::Guards, count + 1, limit));
    }
    let same = written.unchanged(table);
    let reach = ReachSurvey::new(&writes.fleet).reach_of_guard(written.guard.pattern());
    Ok(v1::PutGuardResponse {
        guard: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        findings: findings(table, written, effects, &reach),
        changed: same.is_none(),
        reach: Some(reach),
    })
}

/// Returns the findings about the guard and the rules that it cuts.
fn findings(
    table: &Snapshot,
    written: &NewGuard,
    effects: Effects,
    reach: &v1::RuleReach,
) -> Vec<v1::Finding> {
    let guards = GuardTable::only(Arc::new(written.stored()));
    let rules = table.iter().filter_map(|(_, stored)| stored.rule.as_deref());
    let cuts = rules.flat_map(|rule| findings::cuts(&guards, rule));
    let effects = effects.findings(&written.subject());
    FindingList::all(effects.chain(findings::of_guard(&written.guard, reach)).chain(cuts))
}
