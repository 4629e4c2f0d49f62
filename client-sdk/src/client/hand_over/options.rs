//! The application's side of a hand-over: the extension of a request, and the marker of its error.

use tonic::Status;

use crate::headers;

/// Hands the call of a request over to a durable queue if it fails: it becomes a job, which a
/// [worker](crate::Damper::worker) of the queue repeats until it succeeds.
///
/// ```
/// # let order_id = "order-17";
/// use damper_sdk::HandOver;
///
/// let mut request = tonic::Request::new(());
/// request.extensions_mut().insert(HandOver::to("stock-later", order_id));
/// // let result = inventory.reserve(request).await;
/// # let result = Err::<(), _>(tonic::Status::unavailable(""));
/// match result {
///     Err(status) if damper_sdk::handed_over(&status).is_some() => {} // Will be done later.
///     other => drop(other),
/// }
/// ```
///
/// A call is handed over if it is unary and under a rule in `enforce`, its request fits into the rule's
/// `replay_limit` and is not compressed, and it failed with a code that the rule retries. The fates
/// `not_retryable`, `committed`, `cancelled` and `chain_retry_flag` exclude it: the layer above that retries
/// hands over in its place.
///
/// The call waits for the queue, for at most 1 s and until 10 ms before its deadline. The error of the
/// application does not change; [`handed_over`] finds the id of the job in it. Without an id the call counts
/// as failed, and no job exists, except in the rare case that Damper cannot undo it (counted as an orphan).
///
/// The callee may process the request more than once, also after the application has its error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    pub(super) queue: String,
    pub(super) key: String,
    pub(super) order_key: String,
    pub(super) metadata: Vec<String>,
    pub(super) even_late: bool,
}

impl HandOver {
    /// Returns a hand-over to this queue. Two calls of the same method with the same key become the same job:
    /// use the id of the business operation. 1 to 255 bytes.
    #[must_use]
    pub fn to(queue: impl Into<String>, key: impl Into<String>) -> Self {
        let metadata = vec![headers::TRACE_PARENT.as_str().to_owned()];
        Self { queue: queue.into(), key: key.into(), order_key: String::new(), metadata, even_late: false }
    }

    /// Also hands over a call whose deadline leaves no time to wait for the queue: it then takes up to 1 s
    /// longer than its deadline.
    #[must_use]
    pub fn even_late(self) -> Self {
        Self { even_late: true, ..self }
    }

    /// Jobs with the same order key and method are delivered one at a time, in the order of submission. At
    /// most 255 bytes. Default: none.
    #[must_use]
    pub fn order_key(self, order_key: impl Into<String>) -> Self {
        Self { order_key: order_key.into(), ..self }
    }

    /// Names of request metadata to keep with the job. A queue rejects names that its setting `metadata` does
    /// not list. Credentials and binary values cannot be kept. Default: `traceparent`, as for queues.
    #[must_use]
    pub fn keep_metadata<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        Self { metadata: names.into_iter().map(Into::into).collect(), ..self }
    }
}

/// Returns the id of the job that the call with this status has become; `None` if it was not handed over.
#[must_use]
pub fn handed_over(status: &Status) -> Option<&str> {
    status.metadata().get(headers::JOB.as_str())?.to_str().ok()
}
