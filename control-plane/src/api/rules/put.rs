//! Creates or replaces one rule.

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
use crate::write::findings::{FindingList, Traffic};
use crate::write::reach::ReachSurvey;
use crate::write::request::{CompletedWrite, WriteRequest, all_or, check_expected, check_options, too_many};
use crate::write::resource::NewRule;
use crate::write::single;
use crate::write::single::{Effects, SingleWrite, SingleWriteResult};

pub(crate) async fn put(
    writes: &Arc<Writes>,
    request: Request<v1::PutRuleRequest>,
) -> Result<v1::PutRuleResponse, ApiError> {
    let (asked, request) = WriteRequest::read("put", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let written = all_or(NewRule::read("rule", request.rule), faults)?;
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
    request: v1::JudgeRuleRequest,
) -> Result<v1::PutRuleResponse, ApiError> {
    let written = NewRule::read("rule", request.rule)?;
    let effects = single::check(writes, &written).await?;
    try_out(writes, &writes.fleet.table(), &written, None, effects)
}

impl SingleWrite for NewRule {
    fn subject(&self) -> ResourceKey {
        self.subject()
    }

    fn changes(&self, table: &Snapshot) -> bool {
        self.unchanged(table).is_none()
    }

    fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes {
        self.value(table, author, at)
    }

    /// Errors if guards or the limit along the chain do not allow the rule, unless it is stored already.
    fn permit(
        &self,
        before: &Snapshot,
        chain: &ChainCheck,
        options: &v1::WriteOptions,
    ) -> Result<(), ApiError> {
        if self.unchanged(before).is_some() {
            return Ok(());
        }
        let mut faults = Faults::none();
        let checks = [
            findings::check_guards(before.guards(), &self.rule),
            chain.permit(options, |_| "policy".to_owned()),
        ];
        for fault in checks.into_iter().filter_map(Result::err) {
            faults.nest("", fault);
        }
        faults.or(()).map_err(|faults| ApiError::at("rule", faults))
    }
}

fn response(
    writes: &Writes,
    written: &NewRule,
    CompletedWrite { committed, after: table, .. }: &CompletedWrite,
    mut effects: Effects,
) -> v1::PutRuleResponse {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.stored(written.rule.pattern()).filter(|stored| stored.wire.revision == revision);
    let rule =
        stored.map_or_else(|| v1::Rule { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    let (was, is) = effects.amplified.take().unzip();
    let (reach, findings) = found(writes, table.guards(), written, effects);
    v1::PutRuleResponse {
        rule: Some(rule),
        revision: committed.revision,
        reach: Some(reach),
        changed: !committed.unchanged,
        findings,
        before: was,
        after: is,
    }
}

/// Returns the response to a dry run.
fn try_out(
    writes: &Writes,
    table: &Snapshot,
    written: &NewRule,
    expected: Option<u64>,
    mut effects: Effects,
) -> Result<v1::PutRuleResponse, ApiError> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let limit = writes.limits.max_rules;
    if table.revision_of(&subject).is_none() && table.len() >= limit {
        return Err(too_many(Limit::Rules, table.len() + 1, limit));
    }
    let same = written.unchanged(table);
    let (was, is) = effects.amplified.take().unzip();
    let (reach, findings) = found(writes, table.guards(), written, effects);
    Ok(v1::PutRuleResponse {
        rule: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        reach: Some(reach),
        changed: same.is_none(),
        findings,
        before: was,
        after: is,
    })
}

/// Returns the reach of the rule and its findings.
fn found(
    writes: &Writes,
    guards: &GuardTable,
    written: &NewRule,
    effects: Effects,
) -> (v1::RuleReach, Vec<v1::Finding>) {
    let reach = ReachSurvey::new(&writes.fleet).reach(&written.rule);
    let rule_findings = findings::of_rule(guards, &written.rule, &Traffic::new(&writes.fleet), &reach);
    let effects = effects.findings(&written.subject());
    let findings = FindingList::all(effects.chain(rule_findings));
    (reach, findings)
}
