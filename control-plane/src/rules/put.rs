//! Creates or replaces one rule.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;
use tonic::Request;

use crate::chain::{self, Judged};
use crate::errors::Error;
use crate::judgement::{self, Findings, Traffic};
use crate::ownership;
use crate::reach::Survey;
use crate::requests::{Asked, Done, all_or, check_expected, check_options, first_answer, too_many, write};
use crate::shared::Shared;
use crate::table::{Guards, TableView};
use crate::writer::ProposedEdit;
use crate::written::WrittenRule;

pub(super) async fn put(
    shared: &Arc<Shared>,
    request: Request<v1::PutRuleRequest>,
) -> Result<v1::PutRuleResponse, Error> {
    let (asked, request) = Asked::read("put", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let written = all_or(WrittenRule::read("rule", request.rule), faults)?;
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
    permit(&written, &before, &beside.chain, &asked.options).map_err(|refused| Error::at("rule", refused))?;
    if asked.options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision, beside);
    }
    let done = write(shared, &asked, &before, at, vec![edit]).await?;
    if done.committed.repeated {
        return again(done).await;
    }
    Ok(response(shared, &written, &done, beside))
}

/// What is found where a rule is put, besides what it says.
struct Beside {
    of_another: Option<v1::Finding>,
    chain: Judged,
}

impl Beside {
    async fn of(
        shared: &Arc<Shared>,
        asked: &Asked,
        written: &WrittenRule,
        before: &Arc<TableView>,
        edit: &ProposedEdit,
    ) -> Result<Self, Error> {
        let of_another = ownership::of_rule(before, written, &asked.options.owner);
        let chain = chain::judge(shared, before, std::slice::from_ref(edit)).await?;
        Ok(Self { of_another, chain })
    }
}

/// Refuses a rule that guards do not allow, or that lets a chain send too much.
fn permit(
    written: &WrittenRule,
    before: &TableView,
    chain: &Judged,
    options: &v1::WriteOptions,
) -> Result<(), Faults> {
    if written.unchanged(before).is_some() {
        return Ok(());
    }
    let mut faults = Faults::none();
    for refused in
        [judgement::refuse(before.guards(), &written.rule), chain.permit(options, |_| "policy".to_owned())]
    {
        if let Err(refused) = refused {
            faults.nest("", refused);
        }
    }
    faults.or(())
}

fn response(
    shared: &Shared,
    written: &WrittenRule,
    Done { committed, after: table, .. }: &Done,
    beside: Beside,
) -> v1::PutRuleResponse {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.stored(written.rule.pattern()).filter(|stored| stored.wire.revision == revision);
    let rule =
        stored.map_or_else(|| v1::Rule { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    let (reach, findings) = found(shared, table.guards(), written, beside);
    v1::PutRuleResponse {
        rule: Some(rule),
        revision: committed.revision,
        reach: Some(reach),
        changed: !committed.unchanged,
        findings,
    }
}

/// What a put would answer.
fn try_out(
    shared: &Shared,
    table: &TableView,
    written: &WrittenRule,
    expected: Option<u64>,
    beside: Beside,
) -> Result<v1::PutRuleResponse, Error> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let limit = shared.settings.max_rules;
    if table.revision_of(&subject).is_none() && table.len() >= limit {
        return Err(too_many("rules", table.len() + 1, limit));
    }
    let same = written.unchanged(table);
    let (reach, findings) = found(shared, table.guards(), written, beside);
    Ok(v1::PutRuleResponse {
        rule: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        reach: Some(reach),
        changed: same.is_none(),
        findings,
    })
}

/// Whom the rule concerns, and what deserves a look.
fn found(
    shared: &Shared,
    guards: &Guards,
    written: &WrittenRule,
    Beside { of_another, chain }: Beside,
) -> (v1::RuleReach, Vec<v1::Finding>) {
    let reach = Survey::of(shared).reach(&written.rule);
    let of_rule = judgement::of_rule(guards, &written.rule, &Traffic::of(shared), &reach);
    let beside = chain.findings_of(&written.subject()).into_iter().chain(of_another);
    let findings = Findings::all(beside.chain(of_rule));
    (reach, findings)
}
