//! Creates or replaces one rule.

use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use crate::chain::{self, Judged};
use crate::errors::Error;
use crate::judgement::{self, Findings, Traffic};
use crate::ownership;
use crate::reach::Survey;
use crate::requests::{all_or, check_expected, check_options, digest_of, first_answer, too_many, write};
use crate::shared::Shared;
use crate::table::{Guards, TableView};
use crate::writer::{Committed, ProposedEdit};
use crate::written::WrittenRule;

pub(super) async fn put(shared: &Shared, request: v1::PutRuleRequest) -> Result<v1::PutRuleResponse, Error> {
    let digest = digest_of("put", &request);
    let options = request.options.unwrap_or_default();
    let mut faults = Faults::none();
    check_options("options", &options, &mut faults);
    let written = all_or(WrittenRule::read("rule", request.rule), faults)?;
    let before = shared.table();
    let of_another = ownership::of_rule(&before, &written, &options.owner);
    let at = SystemTime::now();
    let edit = ProposedEdit {
        key: written.subject().key(),
        value: Some(written.value(&before, &options.author, at)),
        expected: request.expected_revision,
    };
    let chain = chain::judge(shared, &before, std::slice::from_ref(&edit));
    let beside = Beside { of_another, chain };
    if let Err(refused) = permit(&written, &before, &beside.chain, &options) {
        return match first_answer(shared, &options, digest).await? {
            Some((committed, table)) => Ok(response(shared, &written, &committed, &table, beside)),
            None => Err(Error::at("rule", refused)),
        };
    }
    if options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision, beside);
    }
    let (committed, table) = write(shared, &options, digest, at, vec![edit]).await?;
    Ok(response(shared, &written, &committed, &table, beside))
}

/// What is found where a rule is put, besides what it says.
struct Beside {
    of_another: Option<v1::Finding>,
    chain: Judged,
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
    committed: &Committed,
    table: &TableView,
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
    let beside = chain.finding_of(&written.subject()).into_iter().chain(of_another);
    let findings = Findings::all(beside.chain(of_rule));
    (reach, findings)
}
