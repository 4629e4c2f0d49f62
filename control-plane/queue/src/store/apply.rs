//! The rules of a commit, the same in every store: fences, keys, and the turns of jobs with an order key.
//!
//! Each function reads the rows that it needs, decides, and writes each changed row once. A store implements
//! [`Rows`] over a transaction; its indexes follow from the rows.
//!
//! Of the jobs with one order key, the head is the one that may be due or leased; all others are behind it.
//! What ends the head makes the first one behind it the new head, in the same transaction.

use std::sync::Arc;

use damper_core::job::{Job, Wall};
use sha2::{Digest as _, Sha256};

use super::batch::{
    After, Change, ChangeTo, LeaseClaim, LeaseRequest, Settled, SettledBy, Settlement, Submitted,
};
use super::error::Error;
use super::record::{Body, Booking, FailedDelivery, JobId, Lane, MAX_FAILURES, Record, State, StateKind};

/// The rows of a store within one transaction.
pub(super) trait Rows {
    /// Why an operation cannot go on.
    type Stop;
    /// Returns a job.
    fn get(&mut self, id: JobId) -> Result<Option<Record>, Self::Stop>;
    /// Writes a job with all its places in the indexes, and removes a body that its new state does not have.
    /// Without `new` the job is deleted.
    fn put(&mut self, old: &Record, new: Option<&Record>) -> Result<(), Self::Stop>;
    /// Writes a new job, its key and its body.
    fn insert(&mut self, record: &Record, body: &Body) -> Result<(), Self::Stop>;
    /// Returns the job with a key in the scope of a lane.
    fn keyed(&mut self, lane: &Arc<Lane>, key: &str) -> Result<Option<JobId>, Self::Stop>;
    /// Returns the job that has its turn under an order key in the scope of a lane.
    fn head(&mut self, lane: &Arc<Lane>, order_key: &str) -> Result<Option<JobId>, Self::Stop>;
    /// Sets or removes that job.
    fn set_head(&mut self, lane: &Arc<Lane>, order_key: &str, id: Option<JobId>) -> Result<(), Self::Stop>;
    /// Returns the first of the jobs behind, by `job.began` and id.
    fn first_behind(&mut self, lane: &Arc<Lane>, order_key: &str) -> Result<Option<JobId>, Self::Stop>;
}

/// Ends a delivery.
pub(super) fn settle<R: Rows>(rows: &mut R, end: &Settlement) -> Result<Settled, R::Stop> {
    let Some(old) = rows.get(end.id)? else { return Ok(Settled::Lost) };
    let settled = match_settlement(&old, end);
    if !matches!(settled, Settled::Applied | Settled::Replaced) {
        return Ok(settled);
    }
    let mut new = old.clone();
    let before = match end.by {
        SettledBy::Worker => None,
        SettledBy::Server(_) => Some(old.job),
    };
    new.booked = Some(Booking { token: end.token, before });
    new.job = Job { deliveries: old.job.deliveries, ..end.job };
    new.at = end.at;
    new.failures.retain(|failure| failure.delivery != end.delivery);
    if let Some(failure) = &end.failure {
        add_failure(&mut new.failures, failure.clone());
    }
    match end.to {
        After::Waiting => new.ended.clear(),
        _ => new.ended.clone_from(&end.ended),
    }
    match end.to {
        After::Waiting => take_turn(rows, &mut new)?,
        After::Done => set_ended(&mut new, State::Done),
        After::Dead => set_ended(&mut new, State::Dead),
        After::Cancelled => set_ended(&mut new, State::Cancelled),
        After::Expired => set_ended(&mut new, State::Expired),
    }
    rows.put(&old, Some(&new))?;
    pass_turn(rows, &new)?;
    Ok(settled)
}

/// Compares a settlement with the job: is this delivery still to be settled?
fn match_settlement(old: &Record, end: &Settlement) -> Settled {
    if old.job.deliveries != end.delivery {
        return Settled::Lost;
    }
    if let State::Leased { server, token } = old.state {
        let keeps = match end.by {
            SettledBy::Worker => true,
            SettledBy::Server(by) => by == server,
        };
        return if token == end.token && keeps { Settled::Applied } else { Settled::Lost };
    }
    let Some(booking) = old.booked.filter(|booking| booking.token == end.token) else {
        return Settled::Lost;
    };
    let is_open = matches!(old.state, State::Waiting | State::Behind | State::Dead);
    match (end.by, booking.before) {
        (SettledBy::Worker, None) => Settled::Repeated,
        (SettledBy::Worker, Some(_)) if is_open => Settled::Replaced,
        _ => Settled::Lost,
    }
}

fn add_failure(failures: &mut Vec<FailedDelivery>, failure: FailedDelivery) {
    if failures.len() >= MAX_FAILURES {
        failures.drain(..=failures.len() - MAX_FAILURES);
    }
    failures.push(failure);
}

/// Moves a lease to the server at which its worker named it.
pub(super) fn claim<R: Rows>(rows: &mut R, claim: &LeaseClaim) -> Result<Option<Record>, R::Stop> {
    let Some(old) = rows.get(claim.id)? else { return Ok(None) };
    let State::Leased { server, token } = old.state else { return Ok(None) };
    if old.job.deliveries != claim.delivery || token != claim.token {
        return Ok(None);
    }
    if server == claim.server {
        return Ok(Some(old));
    }
    let new = Record { state: State::Leased { server: claim.server, token }, ..old.clone() };
    rows.put(&old, Some(&new))?;
    Ok(Some(new))
}

/// Leases a job that the request's lane has due.
pub(super) fn lease<R: Rows>(rows: &mut R, old: &Record, request: &LeaseRequest) -> Result<Record, R::Stop> {
    let mut new = old.clone();
    new.job.deliveries = old.job.deliveries.saturating_add(1);
    let token = token(request.seed, new.id, new.job.deliveries);
    new.state = State::Leased { server: request.server, token };
    new.at = request.now;
    new.booked = None;
    rows.put(old, Some(&new))?;
    Ok(new)
}

/// Derives the token of a lease. By a hash: a worker that knows its token does not know those of others.
pub(crate) fn token(seed: u64, id: JobId, delivery: u32) -> u64 {
    let hash = Sha256::new().chain_update(seed.to_be_bytes()).chain_update(id.0);
    let digest: [u8; 32] = hash.chain_update(delivery.to_be_bytes()).finalize().into();
    u64::from_be_bytes(*digest.first_chunk().expect("a SHA-256 has 32 bytes"))
}

/// Stores a new job, unless there is one with its key or id. `full` is why there is no room for more.
pub(super) fn submit<R: Rows>(
    rows: &mut R,
    job: &Record,
    body: &Body,
    full: Option<&str>,
) -> Result<Submitted, R::Stop> {
    if let Err(error) = check(job, body) {
        return Ok(Submitted::Refused(error));
    }
    if let Some(id) = rows.keyed(&job.lane, &job.key)?
        && let Some(there) = rows.get(id)?
    {
        let is_other = there.body_key_id == job.body_key_id && there.digest != job.digest;
        return Ok(if is_other { Submitted::Conflict(id) } else { Submitted::Existing(Box::new(there)) });
    }
    if rows.get(job.id)?.is_some() {
        return Ok(Submitted::Conflict(job.id));
    }
    if let Some(full) = full {
        return Ok(Submitted::Refused(Error::Full(full.to_owned())));
    }
    let mut new = Record { booked: None, body_bytes: body.bytes(), ..job.clone() };
    take_turn(rows, &mut new)?;
    rows.insert(&new, body)?;
    Ok(Submitted::Stored(new.state))
}

/// Rejects what one of the stores cannot keep: PostgreSQL has no U+0000 in a text and no time beyond an
/// `i64`.
fn check(job: &Record, body: &Body) -> Result<(), Error> {
    let metadata = body.metadata.iter().flat_map(|(name, value)| [("metadata", name), ("metadata", value)]);
    let texts = [
        ("queue", &job.lane.queue),
        ("key", &job.key),
        ("call_id", &job.call_id),
        ("body_key_id", &job.body_key_id),
    ];
    let order_key = job.order_key.iter().map(|key| ("order_key", key));
    let mut texts = texts.into_iter().chain(order_key).chain(metadata);
    if let Some((name, _)) = texts.find(|(_, text)| text.contains('\0')) {
        return Err(Error::Invalid(format!("{name}: contains U+0000; remove it")));
    }
    let times = [("at", job.at), ("submitted", job.submitted), ("expires", job.job.expires)];
    match times.into_iter().find(|(_, time)| i64::try_from(time.0).is_err()) {
        Some((name, time)) => Err(Error::Invalid(format!("{name}: out of range ({}, <= 2^63 - 1)", time.0))),
        None => Ok(()),
    }
}

/// Changes a job. Returns false if it is in another state than the change needs.
pub(super) fn change<R: Rows>(rows: &mut R, change: &Change) -> Result<bool, R::Stop> {
    let Some(old) = rows.get(change.id)? else { return Ok(false) };
    let mut new = old.clone();
    match (&change.to, old.state.kind()) {
        (ChangeTo::Due, StateKind::Waiting) => {
            new.at = old.at.min(change.now);
            rows.put(&old, Some(&new))?;
        }
        (ChangeTo::Cancelled(reason), StateKind::Waiting | StateKind::Behind) => {
            end_early(rows, &old, State::Cancelled, reason, change.now)?;
        }
        (ChangeTo::Expired(reason), StateKind::Waiting | StateKind::Behind) => {
            end_early(rows, &old, State::Expired, reason, change.now)?;
        }
        (ChangeTo::Replayed(at, job), StateKind::Dead) => {
            new.at = *at;
            new.job = Job { deliveries: old.job.deliveries, ..*job };
            new.booked = None;
            new.ended.clear();
            take_turn(rows, &mut new)?;
            rows.put(&old, Some(&new))?;
        }
        (ChangeTo::Deleted, kind) if !kind.is_live() => rows.put(&old, None)?,
        (ChangeTo::Removed, _) => {
            rows.put(&old, None)?;
            set_ended(&mut new, State::Cancelled);
            pass_turn(rows, &new)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn end_early<R: Rows>(
    rows: &mut R,
    old: &Record,
    state: State,
    reason: &str,
    now: Wall,
) -> Result<(), R::Stop> {
    let mut new = Record { at: now, ended: reason.to_owned(), ..old.clone() };
    set_ended(&mut new, state);
    rows.put(old, Some(&new))?;
    pass_turn(rows, &new)
}

fn set_ended(record: &mut Record, state: State) {
    record.state = state;
    if !state.kind().has_body() {
        record.body_bytes = 0;
    }
}

/// Sets the state of a job that shall wait: behind, if another job has the turn of its order key.
fn take_turn<R: Rows>(rows: &mut R, record: &mut Record) -> Result<(), R::Stop> {
    record.state = State::Waiting;
    let Some(order_key) = &record.order_key else { return Ok(()) };
    match rows.head(&record.lane, order_key)? {
        None => rows.set_head(&record.lane, order_key, Some(record.id))?,
        Some(head) if head == record.id => {}
        Some(_) => record.state = State::Behind,
    }
    Ok(())
}

/// Gives the turn of an ended job, which was written before, to the first one behind it.
fn pass_turn<R: Rows>(rows: &mut R, ended: &Record) -> Result<(), R::Stop> {
    let Some(order_key) = ended.order_key.as_ref().filter(|_| !ended.state.kind().is_live()) else {
        return Ok(());
    };
    if rows.head(&ended.lane, order_key)? != Some(ended.id) {
        return Ok(());
    }
    let next = rows.first_behind(&ended.lane, order_key)?;
    rows.set_head(&ended.lane, order_key, next)?;
    if let Some(next) = next
        && let Some(old) = rows.get(next)?
    {
        let new = Record { state: State::Waiting, ..old.clone() };
        rows.put(&old, Some(&new))?;
    }
    Ok(())
}
