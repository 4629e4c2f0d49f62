//! A job to submit.

use std::fmt;
use std::time::{Duration, SystemTime};

use damper_core::{Failure, Pushback};
use damper_proto::v1;

use crate::background::clock;

/// A job to submit. Damper checks every value; a rejection names the field with its range.
///
/// ```
/// use std::time::Duration;
/// use damper_sdk::queue::NewJob;
///
/// let job = NewJob::new("emails", "welcome-17", "mailer", "mail.Mailer/Welcome")
///     .body("ann@example.com")
///     .order_key("customer-17")
///     .after(Duration::from_secs(3600));
/// ```
#[derive(Clone)]
pub struct NewJob {
    pub(super) job: v1::NewJob,
    after: Option<Duration>,
    expires_after: Option<Duration>,
}

impl NewJob {
    /// Returns a job for this queue. Two jobs of the same method with the same key are the same job: use the
    /// id of the business operation, 1 to 255 bytes.
    ///
    /// Service and method name the work for operators, who stop and count it by them. A worker that
    /// [forwards](super::Worker::forward) calls them.
    #[must_use]
    pub fn new(
        queue: impl Into<String>,
        key: impl Into<String>,
        callee_service: impl Into<String>,
        callee_method: impl Into<String>,
    ) -> Self {
        let job = v1::NewJob {
            queue: queue.into(),
            key: key.into(),
            callee_service: callee_service.into(),
            callee_method: callee_method.into(),
            ..v1::NewJob::default()
        };
        Self { job, after: None, expires_after: None }
    }

    /// Content of the job: for a call the encoded message, else any bytes. The queue limits its size; default
    /// empty.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.job.body = body.into();
        self
    }

    /// Adds metadata for the delivery. The queue must allow the name. Default: none.
    #[must_use]
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.job.metadata.insert(name.into(), value.into());
        self
    }

    /// First delivery no sooner than this from now. 0 to 30 days; conflicts with
    /// [`not_before`](Self::not_before). Default: now.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after: Some(after), ..self }
    }

    /// First delivery no sooner than this, at most 30 days ahead.
    #[must_use]
    pub fn not_before(mut self, time: SystemTime) -> Self {
        self.job.not_before = Some(time.into());
        self
    }

    /// No delivery begins later than this from now. At most the queue's `expires_after`, which is the
    /// default.
    #[must_use]
    pub fn expires_after(self, time: Duration) -> Self {
        Self { expires_after: Some(time), ..self }
    }

    /// Jobs with the same order key and method are delivered one at a time, in the order of submission. At
    /// most 255 bytes. Default: none.
    #[must_use]
    pub fn order_key(mut self, order_key: impl Into<String>) -> Self {
        self.job.order_key = order_key.into();
        self
    }

    /// Returns the message for the control plane. Draws the id of the job, by which it is recognised if its
    /// submission is repeated.
    ///
    /// # Errors
    /// A duration cannot be sent.
    pub(super) fn into_wire(self) -> Result<v1::NewJob, String> {
        let Self { mut job, after, expires_after } = self;
        job.after = after.map(|after| duration("after", after)).transpose()?;
        job.expires_after = expires_after.map(|time| duration("expires_after", time)).transpose()?;
        job.job_id = draw_id();
        Ok(job)
    }
}

/// Returns an id of 128 bits: 48 of time in ms, so that ids of a store are in the order of their creation,
/// and 80 random ones.
pub(super) fn draw_id() -> Vec<u8> {
    let mut bits = [0; 16];
    // Equal ids would mix up two jobs: the fallback is for systems without a source of randomness.
    if getrandom::fill(&mut bits).is_err() {
        bits = fastrand::u128(..).to_ne_bytes();
    }
    let [_, _, time @ ..] = clock::unix_ms().to_be_bytes();
    time.into_iter().chain(bits).take(bits.len()).collect()
}

fn duration(field: &str, duration: Duration) -> Result<prost_types::Duration, String> {
    let sent = prost_types::Duration::try_from(duration);
    sent.map_err(|_| format!("{field}: out of range ({} s, at most 30 days)", duration.as_secs()))
}

/// Converts how a call ended before it was submitted.
pub(super) fn earlier_failure(failure: &Failure, took: Duration) -> v1::EarlierFailure {
    v1::EarlierFailure {
        code: v1::Code::from(failure.code).into(),
        pushback: failure.pushback.map(pushback),
        no_more_retry: failure.no_more_retry,
        took: prost_types::Duration::try_from(took).ok(),
    }
}

/// Converts a pushback; negative is never.
pub(super) fn pushback(pushback: Pushback) -> prost_types::Duration {
    let never = prost_types::Duration { seconds: -1, nanos: 0 };
    match pushback {
        Pushback::After(wait) => prost_types::Duration::try_from(wait).unwrap_or(never),
        Pushback::Stop => never,
    }
}

impl fmt::Debug for NewJob {
    /// Leaves out the body and its metadata.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v1::NewJob { queue, key, callee_service, callee_method, body, order_key, .. } = &self.job;
        f.debug_struct("NewJob")
            .field("queue", queue)
            .field("key", key)
            .field("callee_service", callee_service)
            .field("callee_method", callee_method)
            .field("order_key", order_key)
            .field("body_bytes", &body.len())
            .finish_non_exhaustive()
    }
}
