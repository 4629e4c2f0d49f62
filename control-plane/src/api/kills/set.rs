//! Sets kills or replaces those with the same keys, one or several in one change.
//!
//! The expiry is a wall clock time, computed when the server accepts the request. A repeated request id does
//! not extend the kill.

use std::future::Future;
use std::time::{Duration, SystemTime};

use damper_core::{Faults, Pattern, kill as bounds};
use damper_net::limits::Limit;
use damper_proto::{convert, v1};
use damper_store::writer::{Committed, ProposedEdit};
use tonic::Request;

use crate::state::error::ApiError;
use crate::state::kills::StoredKill;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::reach::ReachSurvey;
use crate::write::request::{
    CompletedWrite, WriteRequest, all_or, check_expected, check_options, listed, read_keys, stored_answer,
    too_many, write,
};
use crate::write::{held_kills, kill_expiry};

/// Kills to be set, equal except for their keys. The response shows the first.
struct NewKill {
    subjects: Vec<ResourceKey>,
    patterns: Vec<Pattern>,
    calls: bool,
    time_to_live: Duration,
    options: v1::WriteOptions,
}

pub(crate) async fn kill(
    writes: &Writes,
    request: Request<v1::KillRequest>,
) -> Result<v1::KillResponse, ApiError> {
    let (asked, request) = WriteRequest::read("kill", request, |request| request.options.take());
    let asked = asked.taken_within(held_kills::MAX_WRITER_WAIT);
    let expected_revision = request.expected_revision;
    let wanted = NewKill::read(request, asked.options.clone())?;
    asked.permit(&wanted.subjects)?;
    let at = SystemTime::now();
    let wire = wanted.wire(&wanted.patterns[0], &asked.author(), at);
    match unless_away(writes, stored_answer(writes, &asked)).await? {
        Some(Some(first)) => return Ok(carried_out(writes, &wanted, wire, &first)),
        None if !wanted.options.validate_only => {
            return in_memory(writes, &asked, &wanted, expected_revision, at).await;
        }
        Some(None) | None => {}
    }
    let table = writes.fleet.table();
    let expected = expected(&table, &wanted.subjects[0], expected_revision, at);
    if wanted.options.validate_only {
        check_expected(&table, &wanted.subjects[0], expected)?;
        check_count(&table, &wanted.patterns, at)?;
        let remaining = prost_types::Duration::try_from(wanted.time_to_live).ok();
        let kill = v1::KillSwitch { remaining, ..wire };
        return Ok(response(writes, kill, table.revision(), &wanted));
    }
    let edits =
        wanted.subjects.iter().zip(&wanted.patterns).enumerate().map(|(place, (subject, pattern))| {
            let value = Some(StoredKill::value(&wanted.wire(pattern, &asked.author(), at)).into());
            ProposedEdit { key: subject.key(), value, expected: expected.filter(|_| place == 0) }
        });
    let writing = async {
        if table.kills().stored_count() + wanted.patterns.len() > bounds::MAX_KILLS {
            // Expired kills must not use up the limit.
            kill_expiry::make_room(writes).await?;
        }
        write(writes, &asked, &table, at, edits.collect()).await
    };
    let Some(done) = unless_away(writes, writing).await? else {
        return in_memory(writes, &asked, &wanted, expected_revision, at).await;
    };
    if !done.committed.repeated {
        let NewKill { subjects, patterns: _, calls, time_to_live, options } = &wanted;
        let v1::WriteOptions { reason, author, .. } = options;
        let (subject, principal) = (listed(subjects), asked.principal());
        tracing::warn!(
            subject,
            calls,
            ?time_to_live,
            reason,
            author,
            principal,
            revision = done.committed.revision,
            "set"
        );
    }
    Ok(carried_out(writes, &wanted, wire, &done))
}

/// Returns the result of the store; `None` if the store is unavailable or was replaced.
pub(crate) async fn unless_away<T>(
    writes: &Writes,
    asking: impl Future<Output = Result<T, ApiError>>,
) -> Result<Option<T>, ApiError> {
    if held_kills::is_needed(&writes.fleet.table()) {
        return Ok(None);
    }
    match asking.await {
        Err(ApiError::Unavailable { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Sets the kills in memory: clients get them now, the store later.
async fn in_memory(
    writes: &Writes,
    asked: &WriteRequest,
    wanted: &NewKill,
    expected_revision: Option<u64>,
    at: SystemTime,
) -> Result<v1::KillResponse, ApiError> {
    let table = writes.fleet.table();
    check_expected(
        &table,
        &wanted.subjects[0],
        expected(&table, &wanted.subjects[0], expected_revision, at),
    )?;
    check_count(&table, &wanted.patterns, at)?;
    let wire = |pattern: &Pattern| wanted.wire(pattern, &asked.author(), at);
    let decisions = wanted.patterns.iter().map(|pattern| (pattern, Some(wire(pattern))));
    let table = held_kills::hold(writes, asked, decisions.collect()).await?;
    let first = &wanted.patterns[0];
    let shown = table.kills().stored(first).and_then(|stored| stored.shown(at));
    let kill = v1::KillSwitch { unstored: true, ..shown.unwrap_or_else(|| wire(first)) };
    Ok(response(writes, kill, table.revision(), wanted))
}

impl NewKill {
    fn read(request: v1::KillRequest, options: v1::WriteOptions) -> Result<Self, ApiError> {
        let v1::KillRequest { key, calls, time_to_live, options: _, expected_revision: _, also } = request;
        let mut faults = Faults::none();
        let time_to_live = read_time_to_live(time_to_live, &mut faults);
        let v1::WriteOptions { reason, .. } = &options;
        let mut reason_faults = Faults::none();
        bounds::check_reason(reason, &mut reason_faults);
        faults.nest("options", reason_faults);
        // `check_reason` has reported a too long reason already.
        let others = v1::WriteOptions { reason: String::new(), ..options.clone() };
        check_options("options", &others, &mut faults);
        let patterns = all_or(read_keys(key.as_ref(), &also).map_err(ApiError::Faults), faults)?;
        let subjects = patterns.iter().cloned().map(ResourceKey::Kill).collect();
        Ok(Self { subjects, patterns, calls, time_to_live, options })
    }

    /// Returns the kill to store for one of the keys.
    fn wire(&self, pattern: &Pattern, author: &str, at: SystemTime) -> v1::KillSwitch {
        v1::KillSwitch {
            key: Some(pattern.into()),
            calls: self.calls,
            reason: self.options.reason.clone(),
            expires_at: Some((at + self.time_to_live).into()),
            remaining: None,
            revision: 0,
            updated_at: Some(at.into()),
            updated_by: author.to_owned(),
            unstored: false,
        }
    }
}

fn read_time_to_live(wire: Option<prost_types::Duration>, faults: &mut Faults) -> Duration {
    let Some(wire) = wire else { return bounds::DEFAULT_TIME_TO_LIVE };
    match convert::length(wire) {
        Some(time_to_live) => {
            bounds::check_time_to_live(time_to_live, faults);
            time_to_live
        }
        None => {
            let text = format!("{} s and {} ns", wire.seconds, wire.nanos);
            faults.add("time_to_live", format!("must be {}, not {text}", bounds::TIME_TO_LIVE));
            bounds::DEFAULT_TIME_TO_LIVE
        }
    }
}

/// Returns the revision that the entry in the store must have. An expired kill counts as absent for "must not
/// exist".
fn expected(
    table: &Snapshot,
    subject: &ResourceKey,
    expected_revision: Option<u64>,
    now: SystemTime,
) -> Option<u64> {
    let stored = subject.pattern().and_then(|pattern| table.kills().stored(pattern));
    match stored.filter(|stored| expected_revision == Some(0) && stored.remaining(now).is_none()) {
        Some(expired) => Some(expired.wire.revision),
        None => expected_revision,
    }
}

fn check_count(table: &Snapshot, patterns: &[Pattern], now: SystemTime) -> Result<(), ApiError> {
    let others = table.kills().in_force(now).filter(|stored| !patterns.contains(stored.kill.pattern()));
    match others.count() + patterns.len() {
        all if all > bounds::MAX_KILLS => Err(too_many(Limit::Kills, all, bounds::MAX_KILLS)),
        _ => Ok(()),
    }
}

/// Returns the kill set by a request. If a repeated request's kill is gone, returns what is known of it.
fn written(
    committed: &Committed,
    table: &Snapshot,
    wire: v1::KillSwitch,
    pattern: &Pattern,
) -> v1::KillSwitch {
    let key = ResourceKey::Kill(pattern.clone()).key();
    let own = committed.keys.iter().find(|(other, _)| *other == key);
    let revision = own.and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.kills().stored(pattern).filter(|stored| stored.wire.revision == revision);
    match stored {
        Some(stored) => stored.shown(SystemTime::now()).unwrap_or_else(|| stored.wire.clone()),
        None if committed.repeated => v1::KillSwitch { revision, expires_at: None, updated_at: None, ..wire },
        None => v1::KillSwitch { revision, ..wire },
    }
}

fn carried_out(
    writes: &Writes,
    wanted: &NewKill,
    wire: v1::KillSwitch,
    CompletedWrite { committed, after, .. }: &CompletedWrite,
) -> v1::KillResponse {
    let kill = written(committed, after, wire, &wanted.patterns[0]);
    response(writes, kill, committed.revision, wanted)
}

fn response(writes: &Writes, kill: v1::KillSwitch, revision: u64, wanted: &NewKill) -> v1::KillResponse {
    let reach = ReachSurvey::new(&writes.fleet).reach_of_kills(&wanted.patterns);
    v1::KillResponse { kill: Some(kill), revision, reach: Some(reach) }
}
