//! A set of changes to rules and guards, all or nothing, in one revision.

mod read;

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;

use self::read::Requests;
use crate::errors::Error;
use crate::paging::Digest;
use crate::requests::{first_answer, write};
use crate::set::Set;
use crate::shared::Shared;

/// An apply as it was read.
struct Apply {
    options: v1::WriteOptions,
    set: Set,
    digest: Digest,
}

pub(super) async fn apply(shared: &Arc<Shared>, requests: Requests) -> Result<v1::ApplyRulesResponse, Error> {
    let Apply { options, set, digest } = tokio::select! {
        apply = read::read(shared, requests) => apply?,
        () = shared.stopping.cancelled() => return Err(Error::unavailable("the server is stopping")),
    };
    let before = shared.table();
    let guards = set.guards_after(&before);
    if let Err(excess) = set.judge(&guards, &before) {
        return match first_answer(shared, &options, digest).await? {
            Some((committed, _)) => {
                let outcome = set.outcome(&before, &committed);
                Ok(set.response(shared, committed.revision, &before, &guards, &outcome))
            }
            None => Err(Error::Faults(excess)),
        };
    }
    if options.validate_only {
        let outcome = set.try_out(shared, &before)?;
        return Ok(set.response(shared, before.revision(), &before, &guards, &outcome));
    }
    let at = SystemTime::now();
    let edits = set.edits(&before, &options.author, at);
    let (committed, _) = write(shared, &options, digest, at, edits).await?;
    let outcome = set.outcome(&before, &committed);
    Ok(set.response(shared, committed.revision, &before, &guards, &outcome))
}
