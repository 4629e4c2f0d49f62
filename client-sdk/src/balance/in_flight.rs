//! A request at an endpoint, until its answer is complete or nobody waits for it any more.

use std::error::Error;
use std::sync::Arc;

use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Endpoint as _};
use damper_core::{Time, Verdict};

use super::set::{Set, Shared};
use crate::client::verdict;

#[derive(Debug)]
pub(super) struct InFlight {
    shared: Arc<Shared>,
    /// The one it was chosen from.
    set: Arc<Set>,
    place: usize,
    deadline: Option<Time>,
    has_ended: bool,
}

impl InFlight {
    pub(super) fn begin(shared: Arc<Shared>, set: Arc<Set>, place: usize) -> Self {
        let begun = Self { shared, set, place, deadline: None, has_ended: false };
        begun.with(|endpoint| endpoint.state().begin());
        begun
    }

    /// Who drops it at this time has waited in vain.
    pub(super) fn until(&mut self, deadline: Option<Time>) {
        self.deadline = deadline;
    }

    /// What became of it.
    pub(super) fn ended(&mut self, verdict: &Verdict) {
        self.end(endpoints::outcome_of(verdict));
    }

    /// There was no answer. Of a lost connection each request fails; that is counted once, with the connection.
    pub(super) fn failed(&mut self, error: &(dyn Error + 'static)) {
        let verdict = verdict::of_error(error);
        self.end(if verdict::is_of_stream(error) {
            endpoints::outcome_of(&verdict)
        } else {
            Outcome::Unknown
        });
    }

    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.with(|endpoint| endpoint.state().end());
            self.shared.ended(&self.set, self.place, outcome);
        }
    }

    fn with(&self, tell: impl FnOnce(&Arc<super::endpoint::Endpoint>)) {
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
        let is_late = self.deadline.is_some_and(|deadline| deadline <= self.shared.clock().now());
        self.end(if is_late { Outcome::Failed } else { Outcome::Unknown });
    }
}
