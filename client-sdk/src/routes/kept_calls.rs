//! Interface between the client layer, which finds a failed call that shall not be lost, and the queue, which
//! submits it as a job.
//!
//! The layer is below the queue, so it knows only this trait. The counters are those of the metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use damper_core::Failure;
use http::HeaderValue;
use tokio::sync::oneshot;

use super::Runtime;
use super::failed_calls::HexId;

/// Submits failed calls as jobs.
pub(crate) trait Keeper: fmt::Debug + Send + Sync {
    /// Submits the call in a task of its own, which a dropped receiver does not end. Sends the id of the job
    /// within [`KeptCall::limit`]; `None` if there is none by then. A job that is found later is cancelled.
    fn keep(&self, call: KeptCall) -> oneshot::Receiver<Option<HeaderValue>>;
}

/// The keeper of a runtime, and the results of its hand-overs.
#[derive(Debug, Default)]
pub(super) struct KeptCalls {
    keeper: OnceLock<Arc<dyn Keeper>>,
    counters: Arc<HandOverCounters>,
}

impl Runtime {
    /// Sets what submits failed calls as jobs.
    pub(crate) fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        // A runtime belongs to one Damper, which calls this once.
        _ = self.kept.keeper.set(keeper);
    }

    /// Returns what submits failed calls as jobs; `None` without a control plane.
    pub(crate) fn keeper(&self) -> Option<&Arc<dyn Keeper>> {
        self.kept.keeper.get()
    }

    /// Returns the counters of calls handed over.
    pub(crate) fn hand_overs(&self) -> &Arc<HandOverCounters> {
        &self.kept.counters
    }
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct KeptCall {
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) order_key: String,
    pub(crate) callee: String,
    pub(crate) method: String,
    /// The message, without its frame.
    pub(crate) body: Body,
    pub(crate) metadata: Vec<(String, String)>,
    /// Failure of the last attempt.
    pub(crate) failure: Failure,
    /// Duration of the last attempt.
    pub(crate) took: Duration,
    /// Attempts made.
    pub(crate) sends: u32,
    pub(crate) call_id: Option<HexId>,
    /// Time that the application waits.
    pub(crate) limit: Duration,
}

/// Content of a request. Never printed.
#[derive(Clone)]
pub(crate) struct Body(pub(crate) Bytes);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Results of hand-overs since the process started.
#[derive(Debug, Default)]
pub(crate) struct HandOverCounters {
    accepted: AtomicU64,
    failed: AtomicU64,
    orphans: AtomicU64,
}

impl HandOverCounters {
    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_orphan(&self) {
        self.orphans.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of accepted calls, of failures and of orphans.
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.accepted, &self.failed, &self.orphans].map(|counter| counter.load(Ordering::Relaxed))
    }
}
