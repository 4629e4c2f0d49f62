//! Records and bodies as bytes, the same in every store.
//!
//! A record is one byte with the version of its encoding, then the row in postcard's format. Postcard has no
//! field names: a changed row is a new version with its own struct, and old rows are read until they are
//! written again. The lane is a number of the store. A body is its metadata in postcard's format, then its
//! content as it is.

use std::sync::Arc;

use damper_core::Code;
use damper_core::backoff::Sequence;
use damper_core::job::{Job, Wall};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::record::{Body, Booking, FailedDelivery, JobId, Lane, Record, ServerId, State};

/// Version of [`Row`].
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Row<'a> {
    lane: u32,
    state: RowState,
    at: u64,
    submitted: u64,
    job: RowJob,
    booked: Option<(u64, Option<RowJob>)>,
    key: &'a str,
    digest: [u8; 32],
    order_key: Option<&'a str>,
    call_id: &'a str,
    body_key_id: &'a str,
    body_bytes: u32,
    ended: &'a str,
    #[serde(borrow)]
    failures: Vec<RowFailure<'a>>,
}

/// Its variants are numbered by their order, which must not change.
#[derive(Serialize, Deserialize)]
enum RowState {
    Waiting,
    Behind,
    Leased { server: u64, token: u64 },
    Done,
    Dead,
    Cancelled,
    Expired,
}

#[derive(Serialize, Deserialize)]
struct RowJob {
    deliveries: u32,
    attempts: u32,
    sends_before: u32,
    lost: u32,
    waits: (u32, u64),
    began: u64,
    expires: u64,
}

#[derive(Serialize, Deserialize)]
struct RowFailure<'a> {
    at: u64,
    delivery: u32,
    code: u8,
    took_ms: u64,
    worker: &'a str,
    detail: &'a str,
}

/// Returns the bytes of a record.
pub(super) fn encode(record: &Record, lane: u32) -> Vec<u8> {
    let row = Row {
        lane,
        state: row_state(record.state),
        at: record.at.0,
        submitted: record.submitted.0,
        job: row_job(&record.job),
        booked: record.booked.map(|booking| (booking.token, booking.before.as_ref().map(row_job))),
        key: &record.key,
        digest: record.digest,
        order_key: record.order_key.as_deref(),
        call_id: &record.call_id,
        body_key_id: &record.body_key_id,
        body_bytes: record.body_bytes,
        ended: &record.ended,
        failures: record.failures.iter().map(row_failure).collect(),
    };
    postcard::to_extend(&row, vec![VERSION]).expect("a row has no part that postcard cannot write")
}

/// Returns the record of these bytes. `lane` finds the lane with a number.
pub(super) fn decode(
    id: JobId,
    bytes: &[u8],
    lane: impl FnOnce(u32) -> Option<Arc<Lane>>,
) -> Result<Record, Error> {
    let (version, bytes) = bytes.split_first().ok_or_else(|| damaged(id, "empty record"))?;
    if *version != VERSION {
        return Err(damaged(id, &format!("unknown version {version}")));
    }
    let row: Row<'_> = postcard::from_bytes(bytes).map_err(|error| damaged(id, &error.to_string()))?;
    let failures = row.failures.into_iter().map(|failure| failed_delivery(id, failure));
    Ok(Record {
        id,
        lane: lane(row.lane).ok_or_else(|| damaged(id, &format!("unknown lane {}", row.lane)))?,
        state: state(&row.state),
        at: Wall(row.at),
        submitted: Wall(row.submitted),
        job: job(&row.job),
        booked: row.booked.map(|(token, before)| Booking { token, before: before.as_ref().map(job) }),
        key: row.key.to_owned(),
        digest: row.digest,
        order_key: row.order_key.map(str::to_owned),
        call_id: row.call_id.to_owned(),
        body_key_id: row.body_key_id.to_owned(),
        body_bytes: row.body_bytes,
        ended: row.ended.to_owned(),
        failures: failures.collect::<Result<_, _>>()?,
    })
}

/// Returns the bytes of a body.
pub(super) fn encode_body(body: &Body) -> Vec<u8> {
    let mut bytes = postcard::to_extend(&body.metadata, Vec::with_capacity(body.content.len() + 16))
        .expect("metadata has no part that postcard cannot write");
    bytes.extend_from_slice(&body.content);
    bytes
}

/// Returns the body of these bytes.
pub(super) fn decode_body(id: JobId, bytes: &[u8]) -> Result<Body, Error> {
    let (metadata, content) =
        postcard::take_from_bytes(bytes).map_err(|error| damaged(id, &format!("body: {error}")))?;
    Ok(Body { content: content.to_owned(), metadata })
}

/// Returns the error of a job that cannot be read.
pub(super) fn damaged(id: JobId, problem: &str) -> Error {
    Error::Damaged(format!("job {:032x}: {problem}", u128::from_be_bytes(id.0)))
}

fn row_state(state: State) -> RowState {
    match state {
        State::Waiting => RowState::Waiting,
        State::Behind => RowState::Behind,
        State::Leased { server, token } => RowState::Leased { server: server.0, token },
        State::Done => RowState::Done,
        State::Dead => RowState::Dead,
        State::Cancelled => RowState::Cancelled,
        State::Expired => RowState::Expired,
    }
}

fn state(row: &RowState) -> State {
    match *row {
        RowState::Waiting => State::Waiting,
        RowState::Behind => State::Behind,
        RowState::Leased { server, token } => State::Leased { server: ServerId(server), token },
        RowState::Done => State::Done,
        RowState::Dead => State::Dead,
        RowState::Cancelled => State::Cancelled,
        RowState::Expired => State::Expired,
    }
}

fn row_job(job: &Job) -> RowJob {
    let Job { deliveries, attempts, sends_before, lost, waits, began, expires } = *job;
    let waits = waits.to_parts();
    RowJob { deliveries, attempts, sends_before, lost, waits, began: began.0, expires: expires.0 }
}

fn job(row: &RowJob) -> Job {
    let RowJob { deliveries, attempts, sends_before, lost, waits, began, expires } = *row;
    let waits = Sequence::from_parts(waits.0, waits.1);
    Job { deliveries, attempts, sends_before, lost, waits, began: Wall(began), expires: Wall(expires) }
}

fn row_failure(failure: &FailedDelivery) -> RowFailure<'_> {
    RowFailure {
        at: failure.at.0,
        delivery: failure.delivery,
        code: failure.code as u8,
        took_ms: failure.took_ms,
        worker: &failure.worker,
        detail: &failure.detail,
    }
}

fn failed_delivery(id: JobId, row: RowFailure<'_>) -> Result<FailedDelivery, Error> {
    let code = Code::from_number(row.code.into());
    Ok(FailedDelivery {
        at: Wall(row.at),
        delivery: row.delivery,
        code: code.ok_or_else(|| damaged(id, &format!("unknown code {}", row.code)))?,
        took_ms: row.took_ms,
        worker: row.worker.to_owned(),
        detail: row.detail.to_owned(),
    })
}
