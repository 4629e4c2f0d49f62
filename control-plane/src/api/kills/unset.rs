//! Ends kills before their expiry, one or several in one change.

use std::time::SystemTime;

use damper_core::{Faults, Pattern};
use damper_proto::v1;
use damper_store::writer::ProposedEdit;
use tonic::Request;

use crate::api::kills::set::unless_away;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::held_kills;
use crate::write::request::{
    CompletedWrite, WriteRequest, all_or, check_expected, check_options, listed, read_keys, stored_answer,
    write,
};

pub(crate) async fn unkill(
    writes: &Writes,
    request: Request<v1::UnkillRequest>,
) -> Result<v1::UnkillResponse, ApiError> {
    let (asked, request) = WriteRequest::read("unkill", request, |request| request.options.take());
    let asked = asked.taken_within(held_kills::MAX_WRITER_WAIT);
    let options = &asked.options;
    let mut faults = Faults::none();
    check_options("options", options, &mut faults);
    let patterns = read_keys(request.key.as_ref(), &request.also).map_err(ApiError::Faults);
    let subjects: Vec<ResourceKey> = all_or(patterns, faults)?.into_iter().map(ResourceKey::Kill).collect();
    asked.permit(&subjects)?;
    let (at, table) = (SystemTime::now(), writes.fleet.table());
    let missing = || ApiError::NotFound(format!("there is no {}", listed(&subjects)));
    let is_active = |subject: &ResourceKey| {
        let stored = subject.pattern().and_then(|pattern| table.kills().stored(pattern));
        stored.map(|stored| stored.remaining(at).is_some())
    };
    if options.validate_only {
        if !subjects.iter().any(|subject| is_active(subject) == Some(true)) {
            return Err(missing());
        }
        check_expected(&table, &subjects[0], request.expected_revision)?;
        return Ok(v1::UnkillResponse { revision: table.revision(), unstored: false });
    }
    let Some(first) = unless_away(writes, stored_answer(writes, &asked)).await? else {
        return in_memory(writes, &asked, &subjects, request.expected_revision).await;
    };
    // Another replica may have set an unknown kill a moment ago.
    if first.is_none() && subjects.iter().all(|subject| is_active(subject) == Some(false)) {
        return Err(missing());
    }
    let edits = subjects.iter().enumerate().map(|(place, subject)| {
        let expected = request.expected_revision.filter(|_| place == 0);
        ProposedEdit { key: subject.key(), value: None, expected }
    });
    let CompletedWrite { committed, .. } = match first {
        Some(first) => first,
        None => match unless_away(writes, write(writes, &asked, &table, at, edits.collect())).await? {
            Some(done) => done,
            None => return in_memory(writes, &asked, &subjects, request.expected_revision).await,
        },
    };
    if committed.unchanged {
        return Err(missing());
    }
    if !committed.repeated {
        let v1::WriteOptions { reason, author, .. } = options;
        let (subject, principal) = (listed(&subjects), asked.principal());
        tracing::warn!(
            subject,
            reason,
            author,
            principal,
            revision = committed.revision,
            "kill ended before its expiry"
        );
    }
    Ok(v1::UnkillResponse { revision: committed.revision, unstored: false })
}

/// Ends the kills in memory: clients get the change now, the store later.
async fn in_memory(
    writes: &Writes,
    asked: &WriteRequest,
    subjects: &[ResourceKey],
    expected: Option<u64>,
) -> Result<v1::UnkillResponse, ApiError> {
    let (table, now) = (writes.fleet.table(), SystemTime::now());
    let is_active = |pattern: &&Pattern| {
        table.kills().stored(pattern).is_some_and(|stored| stored.remaining(now).is_some())
    };
    let active: Vec<_> = subjects.iter().filter_map(ResourceKey::pattern).filter(is_active).collect();
    if active.is_empty() {
        return Err(ApiError::NotFound(format!("there is no {}", listed(subjects))));
    }
    check_expected(&table, &subjects[0], expected)?;
    let decisions = active.into_iter().map(|pattern| (pattern, None));
    let table = held_kills::hold(writes, asked, decisions.collect()).await?;
    Ok(v1::UnkillResponse { revision: table.revision(), unstored: true })
}
