//! How requests of the admin API are read, and how a write is made: the same for rules and guards.
//!
//! Input is parsed into the engine's types first, with all its faults. Writes go to the writer and are answered
//! when the table of this replica shows them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Faults, Pattern};
use damper_proto::{convert, v1};

use crate::errors::{Current, Error};
use crate::paging::Digest;
use crate::shared::Shared;
use crate::table::{Subject, TableView};
use crate::writer::{Committed, Judge, Proposal, ProposedEdit};

const MAX_REQUEST_ID_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 1024;
const MAX_AUTHOR_BYTES: usize = 255;
/// How long a write may wait for the table after it is durable.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// Reads a key that must be there.
pub(crate) fn read_key(path: &str, key: Option<&v1::Pattern>) -> Result<Pattern, Faults> {
    let mut faults = Faults::none();
    let Some(key) = key else {
        faults.add(path, "must be given");
        return Err(faults);
    };
    convert::pattern(key).map_err(|inner| {
        faults.nest(path, inner);
        faults
    })
}

/// Notes what is wrong with the options of a write.
pub(crate) fn check_options(path: &str, options: &v1::WriteOptions, faults: &mut Faults) {
    let v1::WriteOptions { request_id, reason, author, owner, .. } = options;
    let mut of_owner = Faults::none();
    damper_core::guard::check_owner(owner, &mut of_owner);
    faults.nest(path, of_owner);
    let bounded = [
        ("request_id", request_id, MAX_REQUEST_ID_BYTES),
        ("reason", reason, MAX_REASON_BYTES),
        ("author", author, MAX_AUTHOR_BYTES),
    ];
    if options.force && reason.is_empty() {
        faults.add(format!("{path}.reason"), "must be given where a write is forced");
    }
    for (field, text, limit) in bounded {
        if text.len() > limit {
            let problem = format!("has {} bytes, at most {limit} are allowed", text.len());
            faults.add(format!("{path}.{field}"), problem);
        }
    }
}

/// Joins the faults of the parts of a request.
pub(crate) fn all_or<T>(parts: Result<T, Error>, options: Faults) -> Result<T, Error> {
    match parts {
        Ok(value) if options.is_empty() => Ok(value),
        Ok(_) => Err(Error::Faults(options)),
        Err(Error::Faults(mut faults)) => {
            faults.nest("", options);
            Err(Error::Faults(faults))
        }
        Err(other) => Err(other),
    }
}

/// Has edits written and waits until the table shows them.
pub(crate) async fn write(
    shared: &Shared,
    options: &v1::WriteOptions,
    digest: Digest,
    at: SystemTime,
    edits: Vec<ProposedEdit>,
) -> Result<(Committed, Arc<TableView>), Error> {
    write_at(shared, options, digest, at, None, edits).await
}

/// The same, where a judge chooses the edits at the moment of writing; `edits` are what it would choose now.
pub(crate) async fn write_judged(
    shared: &Shared,
    options: &v1::WriteOptions,
    digest: Digest,
    at: SystemTime,
    edits: Vec<ProposedEdit>,
    judge: Arc<dyn Judge>,
) -> Result<(Committed, Arc<TableView>), Error> {
    let judge = Some(judge);
    commit(shared, Proposal { judge, ..proposal(options, digest, at, edits) }).await
}

/// The same, where the store must be at a revision.
pub(crate) async fn write_at(
    shared: &Shared,
    options: &v1::WriteOptions,
    digest: Digest,
    at: SystemTime,
    expected_head: Option<u64>,
    edits: Vec<ProposedEdit>,
) -> Result<(Committed, Arc<TableView>), Error> {
    commit(shared, Proposal { expected_head, ..proposal(options, digest, at, edits) }).await
}

fn proposal(
    options: &v1::WriteOptions,
    digest: Digest,
    at: SystemTime,
    edits: Vec<ProposedEdit>,
) -> Proposal {
    Proposal {
        author: options.author.clone(),
        reason: options.reason.clone(),
        request_id: options.request_id.clone(),
        request_digest: digest.value(),
        at,
        expected_head: None,
        edits,
        judge: None,
    }
}

async fn commit(shared: &Shared, proposal: Proposal) -> Result<(Committed, Arc<TableView>), Error> {
    let committed = shared.writer.propose(proposal).await?;
    let table = match shared.table_at(committed.revision, REACHED_WITHIN).await {
        Ok(table) => table,
        Err(error) => {
            // It is durable: to say anything else than yes would be wrong.
            tracing::warn!(%error, committed.revision, "answering a write before the table shows it");
            shared.table()
        }
    };
    Ok((committed, table))
}

/// The first answer to a request that is repeated; none where it is new, and then nothing is written. For requests
/// that were acceptable once and are no longer.
pub(crate) async fn first_answer(
    shared: &Shared,
    options: &v1::WriteOptions,
    digest: Digest,
) -> Result<Option<(Committed, Arc<TableView>)>, Error> {
    if options.request_id.is_empty() || options.validate_only {
        return Ok(None);
    }
    // The store is never at this revision: only what was written before can be answered.
    let never = Some(u64::MAX);
    match write_at(shared, options, digest, SystemTime::now(), never, Vec::new()).await {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Moved { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks an expected revision against the table, for a write that is only tried.
pub(crate) fn check_expected(
    table: &TableView,
    subject: &Subject,
    expected: Option<u64>,
) -> Result<(), Error> {
    let revision = table.revision_of(subject).unwrap_or(0);
    if expected.is_none_or(|expected| expected == revision) {
        return Ok(());
    }
    Err(Error::Conflict { subject: subject.to_string(), current: Current::stored(table, subject) })
}

/// There would be more rules or guards than are allowed.
pub(crate) fn too_many(what: &str, count: usize, limit: usize) -> Error {
    Error::TooLarge(format!("{count} {what} would be more than the limit of {limit}"))
}

/// Stands for the request, to tell a repetition from another one with the same id.
pub(crate) fn digest_of(operation: &str, request: &impl prost::Message) -> Digest {
    let mut digest = Digest::new();
    digest.add(operation.as_bytes());
    digest.add(&request.encode_to_vec());
    digest
}
