//! Removes one guard.

use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;

use crate::chain;
use crate::errors::Error;
use crate::ownership;
use crate::requests::{all_or, check_expected, check_options, digest_of, first_answer, read_key, write};
use crate::shared::Shared;
use crate::table::Subject;
use crate::writer::ProposedEdit;

pub(super) async fn delete(
    shared: &Shared,
    request: v1::DeleteGuardRequest,
) -> Result<v1::DeleteGuardResponse, Error> {
    let digest = digest_of("delete guard", &request);
    let options = request.options.unwrap_or_default();
    let mut faults = Faults::none();
    check_options("options", &options, &mut faults);
    let pattern = all_or(read_key("key", request.key.as_ref()).map_err(Error::Faults), faults)?;
    let subject = Subject::Guard(pattern);
    let missing = || Error::NotFound(format!("there is no {subject}"));
    let table = shared.table();
    let edit = ProposedEdit { key: subject.key(), value: None, expected: request.expected_revision };
    let chain = chain::judge(shared, &table, std::slice::from_ref(&edit));
    let of_another = ownership::finding(&table, &subject, &[&options.owner]);
    let findings = chain.finding_of(&subject).into_iter().chain(of_another).collect();
    if let Err(refused) = chain.permit(&options, |_| "key".to_owned()) {
        return match first_answer(shared, &options, digest).await? {
            Some((committed, _)) => Ok(v1::DeleteGuardResponse { revision: committed.revision, findings }),
            None => Err(Error::Faults(refused)),
        };
    }
    if options.validate_only {
        check_expected(&table, &subject, request.expected_revision)?;
        table.revision_of(&subject).ok_or_else(missing)?;
        return Ok(v1::DeleteGuardResponse { revision: table.revision(), findings });
    }
    let (committed, _) = write(shared, &options, digest, SystemTime::now(), vec![edit]).await?;
    if committed.unchanged {
        return Err(missing());
    }
    Ok(v1::DeleteGuardResponse { revision: committed.revision, findings })
}
