//! Creates or replaces one rule.

use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use crate::errors::Error;
use crate::judgement::{self, Findings};
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
    if written.unchanged(&before).is_none()
        && let Err(excess) = judgement::refuse(before.guards(), &written.rule)
    {
        return match first_answer(shared, &options, digest).await? {
            Some((committed, table)) => Ok(response(shared, &written, &committed, &table, of_another)),
            None => Err(Error::at("rule", excess)),
        };
    }
    if options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision, of_another);
    }
    let (committed, table) = write(shared, &options, digest, at, vec![edit]).await?;
    Ok(response(shared, &written, &committed, &table, of_another))
}

fn response(
    shared: &Shared,
    written: &WrittenRule,
    committed: &Committed,
    table: &TableView,
    of_another: Option<v1::Finding>,
) -> v1::PutRuleResponse {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.stored(written.rule.pattern()).filter(|stored| stored.wire.revision == revision);
    let rule =
        stored.map_or_else(|| v1::Rule { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    v1::PutRuleResponse {
        rule: Some(rule),
        revision: committed.revision,
        reach: Some(Survey::of(shared).reach(&written.rule)),
        changed: !committed.unchanged,
        findings: findings(table.guards(), written, of_another),
    }
}

/// What a put would answer.
fn try_out(
    shared: &Shared,
    table: &TableView,
    written: &WrittenRule,
    expected: Option<u64>,
    of_another: Option<v1::Finding>,
) -> Result<v1::PutRuleResponse, Error> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let limit = shared.settings.max_rules;
    if table.revision_of(&subject).is_none() && table.len() >= limit {
        return Err(too_many("rules", table.len() + 1, limit));
    }
    let same = written.unchanged(table);
    Ok(v1::PutRuleResponse {
        rule: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        reach: Some(Survey::of(shared).reach(&written.rule)),
        changed: same.is_none(),
        findings: findings(table.guards(), written, of_another),
    })
}

fn findings(
    guards: &Guards,
    written: &WrittenRule,
    of_another: Option<v1::Finding>,
) -> Vec<v1::Finding> {
    Findings::all(of_another.into_iter().chain(judgement::cuts(guards, &written.rule)))
}
