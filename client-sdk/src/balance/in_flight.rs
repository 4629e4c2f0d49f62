//! A request in flight at an endpoint, until its response ends or is dropped.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Endpoint as _};
use damper_core::{Time, Verdict, deadline};

use super::endpoint::Endpoint;
use super::set::{Set, Shared};
use super::stream::{Sender, Stream};
use crate::outcome::verdict;

/// Longest wait for a further connection to one endpoint; others may have room.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct InFlight {
    shared: Arc<Shared>,
    /// The set from which the endpoint was chosen.
    set: Arc<Set>,
    place: usize,
    /// The stream, once there is one.
    stream: Option<Stream>,
    began: Time,
    deadline: Option<Time>,
    has_ended: bool,
}

impl InFlight {
    pub(super) fn begin(shared: Arc<Shared>, set: Arc<Set>, place: usize) -> Self {
        let began = shared.clock().now();
        let begun = Self { shared, set, place, stream: None, began, deadline: None, has_ended: false };
        begun.with(|endpoint| endpoint.state().begin());
        begun
    }

    /// Takes a stream of the endpoint; waits a moment while a further connection is opened. `None` if there
    /// is none: the endpoint has not failed then.
    pub(super) async fn stream(&mut self, taken: Option<(Sender, Stream)>) -> Option<Sender> {
        let (sender, stream) = match taken {
            Some(taken) => taken,
            None => {
                let wait = self.set.endpoints().get(self.place)?.wait();
                tokio::time::timeout(LONGEST_WAIT, wait).await.ok()??
            }
        };
        self.stream = Some(stream);
        Some(sender)
    }

    /// Sets the time from which a drop counts as a failure.
    pub(super) fn until(&mut self, deadline: Option<Time>) {
        self.deadline = deadline;
    }

    /// Records the outcome.
    pub(super) fn ended(&mut self, verdict: &Verdict) {
        self.end(endpoints::outcome_of(verdict));
    }

    /// Records an error. If a connection breaks, all its requests fail; that counts as one failure of the
    /// endpoint.
    pub(super) fn failed(&mut self, error: &(dyn Error + 'static)) {
        let verdict = verdict::of_error(error);
        let outcome = endpoints::outcome_of(&verdict);
        let is_known = !verdict::is_of_stream(error)
            && outcome == Outcome::Failed
            && self.stream.as_ref().is_some_and(Stream::found_broken);
        self.end(if is_known { Outcome::Unknown } else { outcome });
    }

    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.with(|endpoint| endpoint.state().end());
            self.stream = None;
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
