//! Submits failed calls as jobs.
//!
//! Each hand-over is a task that alone decides whether the application gets the id of a job: it answers
//! within the call's limit, and a later success is undone. So an application either knows of the job or there
//! is none, with one exception: a job that a worker got before it could be cancelled is an orphan, and
//! counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use damper_core::{Code, job};
use damper_proto::v1;
use http::HeaderValue;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ask::{Outcome, Refused};
use super::new_job::{draw_id, earlier_failure};
use super::{JobState, QueueAccess, SubmitError, Submitted};
use crate::background::reconnect_backoff::ReconnectBackoff;
use crate::routes::Runtime;
use crate::routes::kept_calls::{HandOverCounters, Keeper, KeptCall};

/// Limit of the hand-overs in flight, including those that are being undone.
const MAX_TASKS: usize = 4_096;
/// Limit of the bytes of their bodies.
const MAX_BYTES: usize = 16 << 20;
/// Time for which a job with an unknown outcome is sought.
const UNDO_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait between two requests for it.
const UNDO_WAIT: Duration = Duration::from_secs(8);
/// Interval between warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Submits failed calls as jobs.
#[derive(Debug)]
pub(super) struct HandOvers {
    access: QueueAccess,
    counters: Arc<HandOverCounters>,
    load: Arc<Load>,
    warned: Arc<Mutex<Option<Instant>>>,
}

/// Hand-overs in flight.
#[derive(Debug, Default)]
struct Load {
    tasks: AtomicUsize,
    bytes: AtomicUsize,
}

impl HandOvers {
    pub(super) fn new(access: &QueueAccess, engine: &Runtime) -> Self {
        let counters = Arc::clone(engine.hand_overs());
        Self { access: access.clone(), counters, load: Arc::default(), warned: Arc::default() }
    }

    /// Takes a place for the call.
    fn begin(&self, call: &KeptCall) -> Result<(Place, Handle), String> {
        let (bytes, max) = (call.body.0.len(), job::MAX_BODY.max);
        if u32::try_from(bytes).is_ok_and(|bytes| bytes <= max) {
            let place = Place::take(&self.load, bytes).ok_or("too many hand-overs in flight")?;
            return Ok((place, Handle::try_current().map_err(|error| error.to_string())?));
        }
        Err(format!("request of {bytes} bytes; a queue keeps at most {max}"))
    }

    fn warn(warned: &Mutex<Option<Instant>>, queue: &str, problem: &str) {
        let mut warned = warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(
                queue,
                problem,
                "a failed call could not be stored as a job; the application receives its error"
            );
        } else {
            tracing::debug!(queue, problem, "a failed call could not be stored as a job");
        }
    }
}

impl Keeper for HandOvers {
    fn keep(&self, call: KeptCall) -> oneshot::Receiver<Option<HeaderValue>> {
        let (answer, receiver) = oneshot::channel();
        let (place, runtime) = match self.begin(&call) {
            Ok(begun) => begun,
            Err(problem) => {
                self.counters.count_failed();
                Self::warn(&self.warned, &call.queue, &problem);
                return receiver;
            }
        };
        let hand_over = HandOver {
            access: self.access.clone(),
            counters: Arc::clone(&self.counters),
            warned: Arc::clone(&self.warned),
        };
        runtime.spawn(hand_over.run(call, answer, place));
        receiver
    }
}

/// A hand-over's share of the load.
struct Place {
    load: Arc<Load>,
    bytes: usize,
}

impl Place {
    fn take(load: &Arc<Load>, bytes: usize) -> Option<Self> {
        let tasks = load.tasks.fetch_add(1, Ordering::Relaxed);
        let held = load.bytes.fetch_add(bytes, Ordering::Relaxed);
        let place = Self { load: Arc::clone(load), bytes };
        (tasks < MAX_TASKS && held.saturating_add(bytes) <= MAX_BYTES).then_some(place)
    }

    /// Releases the bytes: the body was dropped.
    fn drop_body(&mut self) {
        self.load.bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.drop_body();
        self.load.tasks.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The hand-over of one call.
struct HandOver {
    access: QueueAccess,
    counters: Arc<HandOverCounters>,
    warned: Arc<Mutex<Option<Instant>>>,
}

impl HandOver {
    async fn run(self, call: KeptCall, answer: oneshot::Sender<Option<HeaderValue>>, mut place: Place) {
        let (deadline, queue) = (Instant::now() + call.limit, call.queue.clone());
        let mut job = [job_of(call)];
        let [sealed] = job.each_mut().map(|job| self.access.seal(job));
        let submitted = match sealed {
            Ok(()) => self.access.submit(&job, deadline).await.pop().expect("a result for each job"),
            Err(problem) => Err(SubmitError::Unavailable { problem }),
        };
        drop(job);
        place.drop_body();
        let (id, to_undo) = match submitted {
            Ok(submitted) => (id_of(&submitted), None),
            Err(SubmitError::Unknown { job_id, problem }) => (Err(problem), Some(job_id)),
            Err(error) => (Err(error.to_string()), None),
        };
        match &id {
            Ok(_) => self.counters.count_accepted(),
            Err(problem) => self.failed(&queue, problem),
        }
        // The application may have dropped the call, which failed before: its job stays.
        _ = answer.send(id.ok());
        if let Some(job_id) = to_undo {
            self.undo(&job_id).await;
        }
    }

    fn failed(&self, queue: &str, problem: &str) {
        self.counters.count_failed();
        HandOvers::warn(&self.warned, queue, problem);
    }

    /// Cancels the job if it is found within a time. The request that made it may still be on its way.
    async fn undo(&self, job_id: &str) {
        let until = Instant::now() + UNDO_WITHIN;
        let mut waits = ReconnectBackoff::up_to(UNDO_WAIT);
        loop {
            let mut outcome = Outcome::default();
            let asked = self
                .access
                .ask(until, &mut outcome, |access, line| access.cancel_on(line, job_id.to_owned()));
            let is_absent = match asked.await {
                Ok(true) => return,
                Err(Refused::Rejected(Code::FailedPrecondition, _)) => {
                    return self.found_orphan(job_id, "it was delivered");
                }
                Ok(false) => true,
                Err(Refused::Rejected(..) | Refused::Late(_)) => false,
            };
            let again = Instant::now() + waits.next();
            if again >= until {
                if !is_absent {
                    self.found_orphan(job_id, "the control plane is unavailable");
                }
                return;
            }
            tokio::time::sleep_until(again).await;
        }
    }

    fn found_orphan(&self, job_id: &str, problem: &str) {
        self.counters.count_orphan();
        tracing::warn!(
            job_id,
            problem,
            "a call was reported as failed to the application, but its job cannot be cancelled and may still run"
        );
    }
}

/// Returns the id for the application. Errors if the key is that of a job that has ended without success: it
/// would never be done.
fn id_of(submitted: &Submitted) -> Result<HeaderValue, String> {
    let Submitted { job_id, state, .. } = submitted;
    if matches!(state, JobState::Dead | JobState::Cancelled | JobState::Expired) {
        return Err(format!("job {job_id} with this key has ended: {state:?}"));
    }
    HeaderValue::try_from(job_id).map_err(|_| "job id of the server is no header value".to_owned())
}

fn job_of(call: KeptCall) -> v1::NewJob {
    v1::NewJob {
        queue: call.queue,
        key: call.key,
        order_key: call.order_key,
        callee_service: call.callee,
        callee_method: call.method,
        body: call.body.0.into(),
        metadata: call.metadata.into_iter().collect(),
        failed: Some(earlier_failure(&call.failure, call.took)),
        sends_before: call.sends,
        call_id: call.call_id.map_or_else(String::new, |id| id.as_str().to_owned()),
        job_id: draw_id(),
        ..v1::NewJob::default()
    }
}
