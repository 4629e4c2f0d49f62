//! Creates or replaces one rule.

use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use super::reach::Survey;
use super::{
    WrittenRule, all_or, check_expected, check_options, digest_of, read_rule, too_many, value_of, write,
};
use crate::errors::Error;
use crate::shared::Shared;
use crate::table::{self, TableView};
use crate::writer::ProposedEdit;

pub(super) async fn put(shared: &Shared, request: v1::PutRuleRequest) -> Result<v1::PutRuleResponse, Error> {
    let digest = digest_of("put", &request);
    let options = request.options.unwrap_or_default();
    let mut faults = Faults::none();
    check_options("options", &options, &mut faults);
    let written = all_or(read_rule("rule", request.rule), faults)?;
    let pattern = written.rule.pattern();
    let before = shared.table();
    if options.validate_only {
        return try_out(shared, &before, &written, request.expected_revision);
    }
    let at = SystemTime::now();
    let edit = ProposedEdit {
        key: table::key_of(pattern),
        value: Some(value_of(&before, &written, &options, at)),
        expected: request.expected_revision,
    };
    let (committed, table) = write(shared, &options, digest, at, vec![edit]).await?;
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.stored(pattern).filter(|stored| stored.wire.revision == revision);
    let rule =
        stored.map_or_else(|| v1::Rule { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    Ok(v1::PutRuleResponse {
        rule: Some(rule),
        revision: committed.revision,
        reach: Some(Survey::of(shared).reach(&written.rule)),
        changed: !committed.unchanged,
    })
}

/// What a put would answer.
fn try_out(
    shared: &Shared,
    table: &TableView,
    written: &WrittenRule,
    expected: Option<u64>,
) -> Result<v1::PutRuleResponse, Error> {
    let pattern = written.rule.pattern();
    check_expected(table, pattern, expected)?;
    let stored = table.stored(pattern);
    if stored.is_none() && table.len() >= shared.settings.max_rules {
        return Err(too_many(table.len() + 1, shared.settings.max_rules));
    }
    let same = stored.filter(|stored| stored.wire.policy == written.wire.policy);
    Ok(v1::PutRuleResponse {
        rule: Some(same.map_or_else(|| written.wire.clone(), |stored| stored.wire.clone())),
        revision: table.revision(),
        reach: Some(Survey::of(shared).reach(&written.rule)),
        changed: same.is_none(),
    })
}
