//! A request at an endpoint, until its answer is complete or nobody waits for it any more.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Endpoint as _};
use damper_core::{Time, Verdict, deadline};

use super::endpoint::Endpoint;
use super::set::{Set, Shared};
use crate::client::verdict;

#[derive(Debug)]
pub(super) struct InFlight {
    shared: Arc<Shared>,
    /// The one it was chosen from.
    set: Arc<Set>,
    place: usize,
    /// Its connection has been found broken.
    is_broken: Arc<AtomicBool>,
    began: Time,
    deadline: Option<Time>,
    has_ended: bool,
}

impl InFlight {
    pub(super) fn begin(
        shared: Arc<Shared>,
        set: Arc<Set>,
        place: usize,
        is_broken: Arc<AtomicBool>,
    ) -> Self {
        let began = shared.clock().now();
        let begun = Self { shared, set, place, is_broken, began, deadline: None, has_ended: false };
        begun.with(|endpoint| endpoint.state().begin());
        begun
    }

    /// If it is dropped at this time it was not answered in time.
    pub(super) fn until(&mut self, deadline: Option<Time>) {
        self.deadline = deadline;
    }

    /// What became of it.
    pub(super) fn ended(&mut self, verdict: &Verdict) {
        self.end(endpoints::outcome_of(verdict));
    }

    /// There was no answer. All requests on a connection that breaks fail, which is one failure of the endpoint.
    pub(super) fn failed(&mut self, error: &(dyn Error + 'static)) {
        let verdict = verdict::of_error(error);
        let outcome = endpoints::outcome_of(&verdict);
        let is_known = !verdict::is_of_stream(error)
            && outcome == Outcome::Failed
            && self.is_broken.swap(true, Ordering::Relaxed);
        self.end(if is_known { Outcome::Unknown } else { outcome });
    }

    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.with(|endpoint| endpoint.state().end());
            self.shared.ended(&self.set, self.place, outcome);
        }
    }

    fn with(&self, tell: impl FnOnce(&Arc<Endpoint>)) {
        if let Some(endpoint) = self.set.endpoints().get(self.place) {
            tell(endpoint);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let is_late = deadline::ended_by(self.deadline, self.began, self.shared.clock().now());
        self.end(if is_late { Outcome::Failed } else { Outcome::Unknown });
    }
}
