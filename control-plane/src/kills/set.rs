//! Sets a kill, or replaces the one with the same key.
//!
//! Its end is a time of the wall clock of the server that takes it, reckoned from when it takes it: a request that is
//! repeated by its id does not prolong what it set.

use std::time::{Duration, SystemTime};

use damper_core::{Faults, Pattern, kill as bounds};
use damper_proto::{convert, v1};
use tonic::Request;

use super::expiry;
use crate::errors::Error;
use crate::limits::Limit;
use crate::reach::Survey;
use crate::requests::{
    Asked, Done, all_or, check_expected, check_options, first_answer, read_key, too_many, write,
};
use crate::shared::Shared;
use crate::table::{StoredKill, Subject, TableView};
use crate::writer::{Committed, ProposedEdit};

/// A kill that may be set.
struct Wanted {
    subject: Subject,
    calls: bool,
    time_to_live: Duration,
    options: v1::WriteOptions,
}

pub(super) async fn kill(
    shared: &Shared,
    request: Request<v1::KillRequest>,
) -> Result<v1::KillResponse, Error> {
    let (asked, request) = Asked::read("kill", request, |request| request.options.take());
    let said = request.expected_revision;
    let wanted = Wanted::read(request, asked.options.clone())?;
    asked.permit([&wanted.subject])?;
    let at = SystemTime::now();
    let wire = wanted.wire(at);
    if let Some(first) = first_answer(shared, &asked).await? {
        return Ok(carried_out(shared, &wanted, wire, &first));
    }
    let table = shared.table();
    let expected = expected(&table, &wanted.subject, said, at);
    if wanted.options.validate_only {
        check_expected(&table, &wanted.subject, expected)?;
        check_count(&table, &wanted.subject, at)?;
        let remaining = prost_types::Duration::try_from(wanted.time_to_live).ok();
        let kill = v1::KillSwitch { remaining, ..wire };
        return Ok(response(shared, kill, table.revision(), &wanted));
    }
    if table.kills().stored_count() >= bounds::MAX_KILLS {
        // What is over must not keep the place of what is needed.
        expiry::make_room(shared).await?;
    }
    let value = Some(StoredKill::value(&wire).into());
    let edit = ProposedEdit { key: wanted.subject.key(), value, expected };
    let done = write(shared, &asked, &table, at, vec![edit]).await?;
    if !done.committed.repeated {
        let Wanted { subject, calls, time_to_live, options } = &wanted;
        let v1::WriteOptions { reason, author, .. } = options;
        let principal = asked.principal();
        tracing::warn!(%subject, calls, ?time_to_live, reason, author, principal, done.committed.revision, "set");
    }
    Ok(carried_out(shared, &wanted, wire, &done))
}

impl Wanted {
    fn read(request: v1::KillRequest, options: v1::WriteOptions) -> Result<Self, Error> {
        let v1::KillRequest { key, calls, time_to_live, options: _, expected_revision: _ } = request;
        let mut faults = Faults::none();
        let time_to_live = read_time_to_live(time_to_live, &mut faults);
        let v1::WriteOptions { reason, .. } = &options;
        let mut of_reason = Faults::none();
        bounds::check_reason(reason, &mut of_reason);
        faults.nest("options", of_reason);
        // That the reason is too long was just said.
        let others = v1::WriteOptions { reason: String::new(), ..options.clone() };
        check_options("options", &others, &mut faults);
        let pattern = all_or(read_key("key", key.as_ref()).map_err(Error::Faults), faults)?;
        Ok(Self { subject: Subject::Kill(pattern), calls, time_to_live, options })
    }

    /// What is to be stored.
    fn wire(&self, at: SystemTime) -> v1::KillSwitch {
        v1::KillSwitch {
            key: Some(self.subject.pattern().into()),
            calls: self.calls,
            reason: self.options.reason.clone(),
            expires_at: Some((at + self.time_to_live).into()),
            remaining: None,
            revision: 0,
            updated_at: Some(at.into()),
            updated_by: self.options.author.clone(),
        }
    }
}

fn read_time_to_live(said: Option<prost_types::Duration>, faults: &mut Faults) -> Duration {
    let Some(said) = said else { return bounds::DEFAULT_TIME_TO_LIVE };
    match convert::length(said) {
        Some(time_to_live) => {
            bounds::check_time_to_live(time_to_live, faults);
            time_to_live
        }
        None => {
            let v1_words = format!("{} seconds with {} nanos", said.seconds, said.nanos);
            faults.add("time_to_live", format!("{v1_words} is not in {}", bounds::TIME_TO_LIVE));
            bounds::DEFAULT_TIME_TO_LIVE
        }
    }
}

/// The revision that the entry in the store must have: "must not exist" holds for a kill that is over, too.
fn expected(table: &TableView, subject: &Subject, said: Option<u64>, now: SystemTime) -> Option<u64> {
    let stored = table.kills().stored(subject.pattern());
    match stored.filter(|stored| said == Some(0) && stored.remaining(now).is_none()) {
        Some(over) => Some(over.wire.revision),
        None => said,
    }
}

fn check_count(table: &TableView, subject: &Subject, now: SystemTime) -> Result<(), Error> {
    let others = table.kills().in_force(now).filter(|stored| stored.kill.pattern() != subject.pattern());
    match others.count() {
        others if others >= bounds::MAX_KILLS => Err(too_many(Limit::Kills, others + 1, bounds::MAX_KILLS)),
        _ => Ok(()),
    }
}

/// The kill that a request has set; of one that was repeated, when that kill is there no more, what is known of it.
fn written(
    committed: &Committed,
    table: &TableView,
    wire: v1::KillSwitch,
    pattern: &Pattern,
) -> v1::KillSwitch {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.kills().stored(pattern).filter(|stored| stored.wire.revision == revision);
    match stored {
        Some(stored) => stored.shown(SystemTime::now()).unwrap_or_else(|| stored.wire.clone()),
        None if committed.repeated => v1::KillSwitch { revision, expires_at: None, updated_at: None, ..wire },
        None => v1::KillSwitch { revision, ..wire },
    }
}

fn carried_out(
    shared: &Shared,
    wanted: &Wanted,
    wire: v1::KillSwitch,
    Done { committed, after, .. }: &Done,
) -> v1::KillResponse {
    let kill = written(committed, after, wire, wanted.subject.pattern());
    response(shared, kill, committed.revision, wanted)
}

fn response(shared: &Shared, kill: v1::KillSwitch, revision: u64, wanted: &Wanted) -> v1::KillResponse {
    let reach = Survey::of(shared).reach_of_kill(wanted.subject.pattern());
    v1::KillResponse { kill: Some(kill), revision, reach: Some(reach) }
}
