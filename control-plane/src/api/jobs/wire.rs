//! Messages of jobs, read and written.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use damper_core::job::Wall;
use damper_core::{Code, Failure, Faults, Pushback};
use damper_proto::{convert, v1};
use damper_queue::store::{Body, JobId, Record, State, StateKind};
use damper_queue::{
    Delivery, EarlierFailure, FromWorker, LeaseId, NewJob, Rejected, Settle, SubmitResult, ToWorker,
};

use crate::state::error::ApiError;

/// Reads the id of a job.
pub(crate) fn job_id(path: &str, text: &str) -> Result<JobId, ApiError> {
    JobId::parse(text).ok_or_else(|| ApiError::fault(path, "must have 32 hexadecimal characters"))
}

/// Reads a new job. Its faults are reported with those that the job server finds.
pub(crate) fn new_job(wire: v1::NewJob) -> NewJob {
    let mut unread = Faults::none();
    let v1::NewJob {
        queue,
        key,
        callee_service,
        callee_method,
        body,
        metadata,
        after,
        not_before,
        expires_after,
        order_key,
        failed,
        sends_before,
        call_id,
        body_key_id,
        body_tag,
        job_id,
    } = wire;
    let after = after.map(|wire| duration("after", wire, &mut unread));
    let expires_after = expires_after.map(|wire| duration("expires_after", wire, &mut unread));
    let not_before = not_before.map(|wire| wall("not_before", wire, &mut unread));
    let failed = failed.map(|wire| earlier_failure(wire, &mut unread));
    NewJob {
        unread,
        queue,
        key,
        callee_service,
        callee_method,
        body: Body { content: body, metadata: metadata.into_iter().collect() },
        after,
        not_before,
        expires_after,
        order_key,
        failed,
        sends_before,
        call_id,
        body_key_id,
        body_tag,
        job_id,
    }
}

fn earlier_failure(wire: v1::EarlierFailure, faults: &mut Faults) -> EarlierFailure {
    let v1::EarlierFailure { code, pushback, no_more_retry, took } = wire;
    let took = took.map(|wire| duration("failed.took", wire, faults)).unwrap_or_default();
    let code = Code::from_number(code.cast_unsigned()).filter(|code| *code != Code::Ok);
    if code.is_none() {
        faults.add("failed.code", "must be the code of an error");
    }
    let code = code.unwrap_or(Code::Unknown);
    EarlierFailure { failure: Failure { code, no_more_retry, pushback: pushback.map(read_pushback) }, took }
}

/// A negative pushback asks not to retry.
fn read_pushback(wire: prost_types::Duration) -> Pushback {
    convert::length(wire).map_or(Pushback::Stop, Pushback::After)
}

fn duration(path: &str, wire: prost_types::Duration, faults: &mut Faults) -> Duration {
    convert::length(wire).unwrap_or_else(|| {
        faults.add(path, format!("must not be negative ({} s)", wire.seconds));
        Duration::ZERO
    })
}

/// Reads a time.
pub(crate) fn wall(path: &str, wire: prost_types::Timestamp, faults: &mut Faults) -> Wall {
    let since = SystemTime::try_from(wire).ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let ms = since.and_then(|since| u64::try_from(since.as_millis()).ok());
    ms.map(Wall).unwrap_or_else(|| {
        faults.add(path, "must be a time since 1970");
        Wall(0)
    })
}

/// Returns a time in its wire form.
pub(crate) fn time(at: Wall) -> prost_types::Timestamp {
    let nanos = i32::try_from(at.0 % 1_000 * 1_000_000).unwrap_or_default();
    prost_types::Timestamp { seconds: i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX), nanos }
}

/// Returns a duration in its wire form.
pub(crate) fn length(time: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(time).ok()
}

/// Returns a state in its wire form.
pub(crate) fn state(kind: StateKind) -> v1::JobState {
    match kind {
        StateKind::Waiting => v1::JobState::Waiting,
        StateKind::Behind => v1::JobState::Behind,
        StateKind::Leased => v1::JobState::Leased,
        StateKind::Done => v1::JobState::Done,
        StateKind::Dead => v1::JobState::Dead,
        StateKind::Cancelled => v1::JobState::Cancelled,
        StateKind::Expired => v1::JobState::Expired,
    }
}

/// Returns the result of a submission.
pub(crate) fn submitted(result: SubmitResult) -> v1::Submitted {
    let stored = |id: JobId, existing, of: State, due: Wall| v1::Submitted {
        job_id: id.to_string(),
        existing,
        state: state(of.kind()).into(),
        due_at: Some(time(due)),
        rejected: None,
    };
    match result {
        SubmitResult::Stored { id, state, due } => stored(id, false, state, due),
        SubmitResult::Existing(record) => {
            let Record { id, state, at, .. } = *record;
            stored(id, true, state, at)
        }
        SubmitResult::Rejected(Rejected { code, message, fate }) => {
            let fate = fate.map(|fate| fate.name().to_owned()).unwrap_or_default();
            let code = code.number().cast_signed();
            let rejected = Some(v1::Rejected { code, message, fate });
            v1::Submitted { rejected, ..v1::Submitted::default() }
        }
    }
}

/// Reads the lease that a message names.
pub(crate) fn lease(path: &str, bytes: &[u8]) -> Result<LeaseId, ApiError> {
    LeaseId::from_bytes(bytes).ok_or_else(|| ApiError::fault(path, "is no lease"))
}

/// Reads the message of a worker after its hello; `None` for one of a later protocol version.
pub(crate) fn from_worker(kind: Option<v1::from_worker::Kind>) -> Result<Option<FromWorker>, ApiError> {
    use v1::from_worker::Kind;
    Ok(Some(match kind {
        Some(Kind::Hello(_)) => return Err(ApiError::fault("hello", "may only be the first message")),
        Some(Kind::Credits(v1::Credits { queue, more })) => FromWorker::Credits(queue, more),
        Some(Kind::Settle(v1::Settle { lease: bytes, how })) => {
            let Some(how) = how else { return Ok(None) };
            FromWorker::Settle(lease("settle.lease", &bytes)?, settle(how)?)
        }
        Some(Kind::Bye(v1::Bye {})) => FromWorker::Bye,
        Some(Kind::Started(v1::Started { leases })) => {
            let leases = leases.iter().map(|bytes| lease("started.leases", bytes));
            FromWorker::Started(leases.collect::<Result<_, _>>()?)
        }
        Some(Kind::Alive(v1::Alive {})) => FromWorker::Alive,
        None => return Ok(None),
    }))
}

fn settle(how: v1::settle::How) -> Result<Settle, ApiError> {
    use v1::settle::How;
    let mut faults = Faults::none();
    let settle = match how {
        How::Done(v1::Done {}) => Settle::Done,
        How::Failed(v1::DeliveryFailure { code, no_more_retry, pushback, took, detail }) => {
            let failed = v1::EarlierFailure { code, pushback, no_more_retry, took };
            let EarlierFailure { failure, took } = earlier_failure(failed, &mut faults);
            Settle::Failed { failure, took, detail }
        }
        How::Release(v1::Release { why, not_before }) => {
            let not_before = not_before.map(|wire| duration("release.not_before", wire, &mut faults));
            Settle::Released { why, not_before }
        }
        How::Dead(v1::Dead { reason }) => Settle::Dead { reason },
    };
    faults.or(settle).map_err(|faults| ApiError::at("settle", faults))
}

/// Returns a message to a worker.
pub(crate) fn to_worker(message: ToWorker) -> v1::ToWorker {
    use v1::to_worker::Kind;
    let bytes = |lease: LeaseId| lease.to_bytes().to_vec();
    let kind = match message {
        ToWorker::Welcome(lost) => {
            Kind::Welcome(v1::WorkerWelcome { lost: lost.into_iter().map(bytes).collect() })
        }
        ToWorker::Delivery(delivery) => Kind::Delivery(wire_delivery(*delivery)),
        ToWorker::Settled { lease, lost } => Kind::Settled(v1::Settled { lease: bytes(lease), lost }),
        ToWorker::Cancelled(lease) => Kind::Cancelled(v1::LeaseCancelled { lease: bytes(lease) }),
        ToWorker::Goodbye(reason) => Kind::Goodbye(v1::Goodbye { reason: reason.to_owned() }),
    };
    v1::ToWorker { kind: Some(kind) }
}

fn wire_delivery(delivery: Delivery) -> v1::Delivery {
    let Delivery { lease, job, lane, number, sends_before, body, limit, call_id, body_key_id } = delivery;
    v1::Delivery {
        lease: lease.to_bytes().to_vec(),
        job_id: job.to_string(),
        queue: lane.queue.clone(),
        route: Some((&lane.route).into()),
        number,
        sends_before,
        body: body.content,
        metadata: body.metadata.into_iter().collect(),
        limit: length(limit),
        call_id,
        body_key_id,
    }
}

/// Returns a job for operators.
pub(crate) fn job(record: Record, held: String) -> v1::Job {
    let Record { id, lane, at, submitted, job, key, order_key, call_id, body_key_id, .. } = record;
    v1::Job {
        job_id: id.to_string(),
        queue: lane.queue.clone(),
        route: Some((&lane.route).into()),
        key,
        state: state(record.state.kind()).into(),
        submitted_at: Some(time(submitted)),
        at: Some(time(at)),
        expires_at: Some(time(job.expires)),
        deliveries: job.deliveries,
        attempts: job.attempts,
        lost: job.lost,
        sends_before: job.sends_before,
        order_key: order_key.unwrap_or_default(),
        body_bytes: record.body_bytes.into(),
        failures: record.failures.into_iter().map(failure).collect(),
        ended: record.ended,
        held,
        call_id,
        body_key_id,
    }
}

fn failure(failed: damper_queue::store::FailedDelivery) -> v1::JobFailure {
    v1::JobFailure {
        at: Some(time(failed.at)),
        code: failed.code.number().cast_signed(),
        took: length(Duration::from_millis(failed.took_ms)),
        worker: failed.worker,
        detail: failed.detail,
        delivery: failed.delivery,
    }
}
