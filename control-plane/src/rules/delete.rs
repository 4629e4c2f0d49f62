//! Removes one rule.

use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use crate::errors::Error;
use crate::ownership;
use crate::requests::{all_or, check_expected, check_options, digest_of, read_key, write};
use crate::shared::Shared;
use crate::table::Subject;
use crate::writer::ProposedEdit;

pub(super) async fn delete(
    shared: &Shared,
    request: v1::DeleteRuleRequest,
) -> Result<v1::DeleteRuleResponse, Error> {
    let digest = digest_of("delete", &request);
    let options = request.options.unwrap_or_default();
    let mut faults = Faults::none();
    check_options("options", &options, &mut faults);
    let pattern = all_or(read_key("key", request.key.as_ref()).map_err(Error::Faults), faults)?;
    let subject = Subject::Rule(pattern);
    let missing = || Error::NotFound(format!("there is no {subject}"));
    let table = shared.table();
    let findings = ownership::finding(&table, &subject, &[&options.owner]).into_iter().collect();
    if options.validate_only {
        check_expected(&table, &subject, request.expected_revision)?;
        table.revision_of(&subject).ok_or_else(missing)?;
        return Ok(v1::DeleteRuleResponse { revision: table.revision(), findings });
    }
    let edit = ProposedEdit { key: subject.key(), value: None, expected: request.expected_revision };
    let (committed, _) = write(shared, &options, digest, SystemTime::now(), vec![edit]).await?;
    if committed.unchanged {
        return Err(missing());
    }
    Ok(v1::DeleteRuleResponse { revision: committed.revision, findings })
}
