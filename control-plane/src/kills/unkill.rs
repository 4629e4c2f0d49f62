//! Ends a kill before its time.

use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;
use tonic::Request;

use crate::errors::Error;
use crate::requests::{Asked, Done, all_or, check_expected, check_options, first_answer, read_key, write};
use crate::shared::Shared;
use crate::table::Subject;
use crate::writer::ProposedEdit;

pub(super) async fn unkill(
    shared: &Shared,
    request: Request<v1::UnkillRequest>,
) -> Result<v1::UnkillResponse, Error> {
    let (asked, request) = Asked::read("unkill", request, |request| request.options.take());
    let options = &asked.options;
    let mut faults = Faults::none();
    check_options("options", options, &mut faults);
    let pattern = all_or(read_key("key", request.key.as_ref()).map_err(Error::Faults), faults)?;
    let at = SystemTime::now();
    let table = shared.table();
    let stored = table.kills().stored(&pattern).cloned();
    let over = stored.as_ref().is_some_and(|stored| stored.remaining(at).is_none());
    let subject = Subject::Kill(pattern);
    asked.permit([&subject])?;
    let missing = || Error::NotFound(format!("there is no {subject}"));
    if options.validate_only {
        if over || stored.is_none() {
            return Err(missing());
        }
        check_expected(&table, &subject, request.expected_revision)?;
        return Ok(v1::UnkillResponse { revision: table.revision() });
    }
    let first = first_answer(shared, &asked).await?;
    if over && first.is_none() {
        return Err(missing());
    }
    let edit = ProposedEdit { key: subject.key(), value: None, expected: request.expected_revision };
    let Done { committed, .. } = match first {
        Some(first) => first,
        None => write(shared, &asked, &table, at, vec![edit]).await?,
    };
    if committed.unchanged {
        return Err(missing());
    }
    if !committed.repeated {
        let v1::WriteOptions { reason, author, .. } = options;
        let principal = asked.principal();
        tracing::warn!(%subject, reason, author, principal, committed.revision, "ended before its time");
    }
    Ok(v1::UnkillResponse { revision: committed.revision })
}
