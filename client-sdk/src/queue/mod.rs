//! Durable queues: submit a job, work on jobs, finish failed calls later. Requires the feature `queue`.
//!
//! A *job* is a request that Damper keeps until a worker has handled it: at least once, and never more often
//! than the queue's policy allows. A *delivery* is one transfer of a job to a worker.
//!
//! - [`Damper::jobs`](crate::Damper::jobs) submits jobs. [`Jobs::submit`] returns after the job is on disk.
//! - [`Damper::worker`](crate::Damper::worker) receives deliveries: for any work with [`Worker::handle`], or
//!   as gRPC calls with [`Worker::forward`].
//! - [`HandOver`](crate::HandOver) in the extensions of a request makes a job of a call that failed.
//!
//! ```no_run
//! # async fn send(body: &[u8]) -> Result<(), tonic::Status> { Ok(()) }
//! # async fn start(damper: damper_sdk::Damper) -> Result<(), Box<dyn std::error::Error>> {
//! use damper_sdk::queue::NewJob;
//!
//! let job = NewJob::new("emails", "welcome-17", "mailer", "mail.Mailer/Welcome").body("ann@example.com");
//! let submitted = damper.jobs().submit(job).await?;
//! println!("job {}, due at {:?}", submitted.job_id, submitted.due_at);
//!
//! let worker = damper.worker("emails").handle(|delivery| async move { send(delivery.body()).await });
//! let worker = worker.concurrency(32).start()?;
//! // When the process ends:
//! worker.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A handler must bear a repeat: the worker may end after the work is done and before Damper knows it.
//! [`Delivery::call_id`] is equal on all attempts.
//!
//! With [`BodyKeys`] in the [options](crate::Options::body_keys) bodies are encrypted before they leave the
//! process. The control plane can neither read a body nor exchange it for another.
//!
//! Without a control plane ([`Damper::off`](crate::Damper::off), `Damper::fixed`) nothing is submitted and no
//! worker starts.

mod ask;
mod deliveries;
mod dial;
mod forward;
mod hand_over;
mod jobs;
mod link;
mod new_job;
mod worker;

pub use crate::options::body_keys::BodyKeys;
pub use deliveries::{Delivery, HandlerError, NeverAgain};
pub use jobs::{JobState, Jobs, SubmitError, Submitted};
pub use new_job::NewJob;
pub use worker::{Worker, WorkerBuilder, WorkerHandle, WorkerStats};

use std::sync::Arc;
use std::time::Duration;

use damper_proto::v1;
use tokio::sync::watch;

use self::dial::{Dial, ToReplicas};
use self::hand_over::HandOvers;
use self::link::Link;
use crate::options::Settings;
use crate::options::body_keys::cipher::{BodyPlace, SealedBody};
use crate::routes::Runtime;

/// Time that a shutdown waits for workers beyond their drain time.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Results of hand-overs since the process started, see [`HandOver`](crate::HandOver).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandOverStats {
    /// Failed calls that became jobs.
    pub accepted: u64,
    /// Failed calls that did not become jobs: no time was left, or the queue did not accept them in time.
    pub failed: u64,
    /// Of the failed ones, those whose job may run all the same: it could not be cancelled.
    pub orphans: u64,
}

/// The queues of one `Damper`.
#[derive(Debug)]
pub(crate) struct Queues {
    engine: Arc<Runtime>,
    /// `None` without a control plane.
    access: Option<QueueAccess>,
    /// True once the workers must stop. They also stop when the sender is dropped.
    stop: watch::Sender<bool>,
    /// The workers that run.
    workers: Arc<watch::Sender<Workers>>,
}

/// Access to the control plane.
#[derive(Clone, Debug)]
struct QueueAccess {
    identity: v1::Identity,
    keys: Option<BodyKeys>,
    dials: Dials,
    link: Arc<Link>,
}

/// Returns a new connector, one for each worker and one for all submissions.
#[derive(Clone)]
struct Dials(Arc<dyn Fn() -> Box<dyn Dial> + Send + Sync>);

/// The workers that run.
#[derive(Clone, Copy, Debug, Default)]
struct Workers {
    count: usize,
    /// Longest drain time of any worker started.
    drain: Duration,
}

impl Queues {
    /// Returns the queues of a service that follows a control plane.
    pub(crate) fn new(settings: &Settings, engine: &Arc<Runtime>) -> Self {
        let (access, endpoints) = (settings.access.clone(), settings.endpoints.clone());
        let dials = move || -> Box<dyn Dial> { Box::new(ToReplicas::new(access.clone(), endpoints.clone())) };
        let (identity, keys) = ((&settings.identity).into(), settings.body_keys.clone());
        Self::with(Some(QueueAccess::new(identity, keys, Dials(Arc::new(dials)))), engine)
    }

    /// Returns the queues without a control plane.
    pub(crate) fn off(engine: &Arc<Runtime>) -> Self {
        Self::with(None, engine)
    }

    fn with(access: Option<QueueAccess>, engine: &Arc<Runtime>) -> Self {
        if let Some(access) = &access {
            engine.set_keeper(Arc::new(HandOvers::new(access, engine)));
        }
        let (stop, workers) = (watch::Sender::default(), Arc::default());
        Self { engine: Arc::clone(engine), access, stop, workers }
    }

    pub(crate) fn jobs(&self) -> Jobs {
        Jobs::new(self.access.clone())
    }

    pub(crate) fn hand_overs(&self) -> HandOverStats {
        let [accepted, failed, orphans] = self.engine.hand_overs().read();
        HandOverStats { accepted, failed, orphans }
    }

    pub(crate) fn worker(&self, queue: &str) -> Worker {
        Worker::new(queue, self)
    }

    /// Stops all workers, which get their drain time.
    pub(crate) async fn shutdown(&self) {
        self.stop.send_replace(true);
        let mut workers = self.workers.subscribe();
        let within = workers.borrow().drain + END_WITHIN;
        let ended = workers.wait_for(|workers| workers.count == 0);
        if tokio::time::timeout(within, ended).await.is_err() {
            tracing::warn!("workers did not end within {within:?}");
        }
    }
}

impl QueueAccess {
    fn new(identity: v1::Identity, keys: Option<BodyKeys>, dials: Dials) -> Self {
        let link = Arc::new(Link::new(dials.dial()));
        Self { identity, keys, dials, link }
    }

    /// Encrypts the body of a job if there are keys.
    ///
    /// # Errors
    /// The system has no randomness.
    fn seal(&self, job: &mut v1::NewJob) -> Result<(), String> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let body = std::mem::take(&mut job.body);
        let place = BodyPlace {
            queue: &job.queue,
            caller_service: &self.identity.service,
            caller_cluster: &self.identity.cluster,
            callee_service: &job.callee_service,
            callee_method: &job.callee_method,
        };
        let SealedBody { key_id, body, tag } = keys.seal(place, &job.key, &job.job_id, body)?;
        (job.body_key_id, job.body, job.body_tag) = (key_id, body, tag);
        Ok(())
    }
}

impl Dials {
    fn dial(&self) -> Box<dyn Dial> {
        (self.0)()
    }
}

impl std::fmt::Debug for Dials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dials")
    }
}

#[cfg(test)]
mod tests;
