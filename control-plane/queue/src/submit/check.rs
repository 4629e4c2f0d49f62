//! The checks of one job before it is stored.
//!
//! First all faults of its fields, then queue, submitter, route, policy and quotas in this order: the first
//! that rejects it gives the reason.

use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{Job, Queue, Submission};
use damper_core::{Code, Faults, Mode, RouteKey};

use crate::clock::Now;
use crate::state::State;
use crate::state::quota::Reservation;
use crate::store::{self, Body, JobId, Lane, Record};
use crate::submit::{NewJob, Rejected, Submitter, digest};

/// Jobs of one request.
pub const MAX_JOBS_A_REQUEST: usize = 500;
/// Length of keys and order keys, and of the names of body keys.
pub const MAX_KEY_BYTES: usize = 255;
/// How far ahead the first delivery can be.
pub const MAX_AHEAD: Duration = Duration::from_secs(30 * 24 * 3600);
/// Lanes of a queue.
pub(crate) const MAX_LANES_A_QUEUE: usize = 1_000;
/// Lanes in all.
pub(crate) const MAX_LANES: usize = 20_000;

const CALL_ID_CHARS: usize = 32;
const JOB_ID_BYTES: usize = 16;
const TAG_BYTES: usize = 32;

/// An accepted job with its reserved quota.
pub(super) struct Checked {
    pub(super) record: Record,
    pub(super) body: Body,
    pub(super) reservation: Reservation,
}

/// Checks a job and reserves its quota.
pub(super) fn job(state: &mut State, by: &Submitter, job: NewJob, now: Now) -> Result<Checked, Rejected> {
    let queue = state.queues.get(&job.queue).cloned();
    let expires_after = queue.as_ref().map(|queue| {
        let longest = queue.settings().expires_after;
        (job.expires_after.unwrap_or(longest), longest)
    });
    let route = fields(&job, by, queue.as_deref(), expires_after, now)
        .map_err(|faults| Rejected::new(Code::InvalidArgument, faults.to_string()))?;
    let (Some(queue), Some((expires_after, _))) = (queue, expires_after) else {
        return Err(missing(state, &job.queue));
    };
    permitted(&queue, by, &route)?;
    let not_before = job.not_before.unwrap_or(now.wall + job.after.unwrap_or_default());
    let is_timed = job.not_before.is_some() || job.after.is_some();
    let stop = job.failed.is_some_and(|failed| {
        let known = state.by_name.get(&*job.queue);
        known.is_some_and(|known| known.stops(&queue, &route, failed.took, now.time))
    });
    let submission = Submission {
        failed: job.failed.map(|failed| failed.failure),
        stop,
        sends_before: job.sends_before,
        not_before: is_timed.then_some(not_before),
        expires_after,
    };
    let decided = Job::submit(queue.settings(), &submission, now.wall, fastrand::u64(..));
    let (counters, due) = decided.map_err(|fate| Rejected {
        fate: Some(fate),
        ..unmet(format!("queue {} does not repeat this call: {}", queue.name(), fate.name()))
    })?;
    if queue.settings().policy.mode == Mode::Observe {
        return Err(unmet("observed: would have been accepted"));
    }
    let lane = Arc::new(Lane { queue: job.queue.clone(), route });
    let id = match job.job_id.first_chunk::<JOB_ID_BYTES>() {
        Some(id) => JobId(*id),
        None => state.new_id(now.wall),
    };
    let record = Record {
        id,
        lane,
        state: store::State::Waiting,
        at: due,
        submitted: now.wall,
        job: counters,
        booked: None,
        digest: digest::of(&job),
        key: job.key,
        order_key: Some(job.order_key).filter(|key| !key.is_empty()),
        call_id: job.call_id,
        body_key_id: job.body_key_id,
        body_bytes: job.body.bytes(),
        ended: String::new(),
        failures: Vec::new(),
    };
    let whose = (queue.name(), by.service.as_str());
    let reserved = state.quotas.reserve(queue.settings(), whose, record.bytes());
    let reservation = reserved.map_err(|full| Rejected::new(Code::ResourceExhausted, full))?;
    if let Err(rejected) = admit_lane(state, &record.lane, now) {
        state.quotas.give_back(reservation);
        return Err(rejected);
    }
    let mut body = job.body;
    body.metadata.sort();
    Ok(Checked { record, body, reservation })
}

/// Returns the route if no field has a fault.
fn fields(
    job: &NewJob,
    by: &Submitter,
    queue: Option<&Queue>,
    expires: Option<(Duration, Duration)>,
    now: Now,
) -> Result<RouteKey, Faults> {
    let mut faults = job.unread.clone();
    length("key", &job.key, 1, &mut faults);
    length("order_key", &job.order_key, 0, &mut faults);
    length("body_key_id", &job.body_key_id, 0, &mut faults);
    let call_id = &job.call_id;
    if !call_id.is_empty() && (call_id.len() != CALL_ID_CHARS || !call_id.bytes().all(is_hex)) {
        faults.add("call_id", format!("must have {CALL_ID_CHARS} hexadecimal characters"));
    }
    if !matches!(job.job_id.len(), 0 | JOB_ID_BYTES) {
        faults.add("job_id", format!("must have {JOB_ID_BYTES} bytes, not {}", job.job_id.len()));
    }
    let tag_bytes = if job.body_key_id.is_empty() { 0 } else { TAG_BYTES };
    if job.body_tag.len() != tag_bytes {
        let text = format!("must have {tag_bytes} bytes, not {}", job.body_tag.len());
        faults.add("body_tag", text);
    }
    times(job, expires, now, &mut faults);
    if let Some(queue) = queue {
        content(job, queue, &mut faults);
    }
    let route = RouteKey::new(&by.service, &by.cluster, &job.callee_service, &job.callee_method);
    match route {
        Ok(route) => faults.or(route),
        Err(inner) => {
            faults.nest("", inner);
            Err(faults)
        }
    }
}

fn times(job: &NewJob, expires: Option<(Duration, Duration)>, now: Now, faults: &mut Faults) {
    let ahead = job.not_before.map(|at| at.since(now.wall)).or(job.after).unwrap_or_default();
    let path = if job.not_before.is_some() { "not_before" } else { "after" };
    if job.not_before.is_some() && job.after.is_some() {
        faults.add("after", "conflicts with not_before");
    }
    if ahead > MAX_AHEAD {
        faults.add(path, format!("must be at most 30 days ahead, not {} s", ahead.as_secs()));
    }
    let Some((expires_after, longest)) = expires else { return };
    if job.expires_after.is_some() && (expires_after > longest || expires_after.is_zero()) {
        let (most, is) = (longest.as_secs(), expires_after.as_secs());
        faults.add("expires_after", format!("must be more than 0 s and at most {most} s, not {is} s"));
    } else if ahead >= expires_after {
        faults.add(path, format!("is not before the job expires, after {} s", expires_after.as_secs()));
    }
}

fn content(job: &NewJob, queue: &Queue, faults: &mut Faults) {
    let (bytes, most) = (job.body.content.len(), queue.settings().max_body);
    if bytes > most as usize {
        faults.add("body", format!("must have at most {most} bytes, not {bytes}"));
    }
    for (name, _) in &job.body.metadata {
        if !queue.settings().metadata.contains(name) {
            faults.add(format!("metadata.{name}"), format!("is not kept by queue {}", queue.name()));
        }
    }
}

fn length(path: &str, text: &str, least: usize, faults: &mut Faults) {
    let bytes = text.len();
    if bytes < least || bytes > MAX_KEY_BYTES {
        faults.add(path, format!("must have {least} to {MAX_KEY_BYTES} bytes, not {bytes}"));
    }
    if text.contains('\0') {
        faults.add(path, "contains U+0000");
    }
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

fn missing(state: &State, name: &str) -> Rejected {
    match state.by_name.get(name).is_some_and(|queue| queue.lanes.len() > 0) {
        true => unmet(format!("queue {name} has jobs and no policy: it accepts none")),
        false => Rejected::new(Code::NotFound, format!("no queue {name}")),
    }
}

fn unmet(message: impl Into<String>) -> Rejected {
    Rejected::new(Code::FailedPrecondition, message)
}

/// Checks mode, submitter and route.
fn permitted(queue: &Queue, by: &Submitter, route: &RouteKey) -> Result<(), Rejected> {
    let (name, service) = (queue.name(), &by.service);
    if queue.settings().policy.mode == Mode::Off {
        return Err(unmet(format!("queue {name} is off")));
    }
    if !queue.accepts_from(service) {
        let text = format!("{service} is not in submitters of queue {name}");
        return Err(Rejected::new(Code::PermissionDenied, text));
    }
    if !queue.accepts_route(route) {
        let (callee, method) = (route.callee_service(), route.callee_method());
        return Err(unmet(format!("methods of queue {name} do not contain {callee} {method}")));
    }
    Ok(())
}

/// Adds the lane if it is a new one. Errors if there are too many.
fn admit_lane(state: &mut State, lane: &Arc<Lane>, now: Now) -> Result<(), Rejected> {
    let queue = &lane.queue;
    let own = state.queue(queue).lanes.len();
    if state.queue(queue).lanes.get(&lane.route).is_some() {
        return Ok(());
    }
    let full = |text| Err(Rejected::new(Code::ResourceExhausted, text));
    if own >= MAX_LANES_A_QUEUE {
        return full(format!(
            "queue {queue} has jobs of {MAX_LANES_A_QUEUE} routes, and no more are allowed"
        ));
    }
    if state.by_name.values().map(|queue| queue.lanes.len()).sum::<usize>() >= MAX_LANES {
        return full(format!("the queues have jobs of {MAX_LANES} routes, and no more are allowed"));
    }
    state.queue(queue).lanes.entry(lane, now.instant);
    Ok(())
}
