//! A Damper without a connection, for fuzz targets, which pass tables and responses in any order and inspect
//! the result.
//!
//! Only with the feature `fuzzing`; not part of the public API. Responses are applied by the same code as on
//! a stream, without the waiting around it.

use std::sync::Arc;
use std::time::Duration;

use damper_core::repeat_limit::Served;
use damper_core::{Counters, Faults, Kill, Table};
use damper_proto::v1;
use damper_proto::v1::server_message::Kind;

use super::applier::{ApplyOutcome, KillMessage, Position, Response};
use super::report::Reporter;
use super::{ControlContext, Status};
use crate::options::Options;
use crate::routes::Runtime;

/// The Damper of one service.
#[derive(Debug)]
pub struct FuzzHarness(Arc<ControlContext>);

/// Result of a response.
#[derive(Debug, PartialEq)]
pub enum Received {
    /// Applied, except for these entries.
    Applied(Vec<v1::Refusal>),
    /// Changed nothing.
    Unchanged,
    /// Would end the stream.
    Broken(&'static str),
}

impl FuzzHarness {
    /// Returns the Damper of this service, without rules.
    ///
    /// # Errors
    /// The problem with the name.
    pub fn new(service: &str) -> Result<Self, Faults> {
        let options = Options::new(["http://127.0.0.1:1"]).service(service).environment(|_| None);
        let settings = options.resolve()?;
        let engine = Runtime::new(&settings.identity.service, &settings.identity.cluster);
        Ok(Self(Arc::new(ControlContext::new(settings, engine))))
    }

    /// Applies a table.
    pub fn apply(&self, table: Table) {
        self.0.engine.apply(table);
    }

    /// Applies a response of the control plane, as on a stream.
    pub fn receive(&self, message: v1::ServerMessage) -> Received {
        let v1::ServerMessage { epoch, revision, nonce: _, kind, kills, commit } = message;
        let response = match kind {
            Some(Kind::Snapshot(page)) => Response::Snapshot(page),
            Some(Kind::Delta(delta)) => Response::Delta(delta),
            Some(Kind::Bookmark(v1::Bookmark {})) => Response::Bookmark,
            Some(Kind::Goodbye(_)) => return Received::Broken("goodbye from the server"),
            Some(Kind::ReportSettings(settings)) => {
                let mut reporter = Reporter::new();
                reporter.set(&settings);
                _ = reporter.wait();
                return Received::Unchanged;
            }
            None => return Received::Unchanged,
        };
        let kills = kills.map(|set| KillMessage { set, at: self.0.engine.clock().now() });
        match self.0.apply(Position { epoch, revision, commit }, response, kills) {
            ApplyOutcome::Applied { refused, whole: _ } => Received::Applied(refused),
            ApplyOutcome::Confirmed | ApplyOutcome::Stale | ApplyOutcome::Incomplete => Received::Unchanged,
            ApplyOutcome::OutOfStep(problem) => Received::Broken(problem),
        }
    }

    /// Ends a stream and begins the next one.
    pub fn begin_stream(&self) {
        self.0.applier().begin_stream();
    }

    /// Returns the epoch and revision held.
    #[must_use]
    pub fn position(&self) -> Option<(String, u64)> {
        self.0.applier().position().map(|at| (at.epoch.clone(), at.revision))
    }

    /// Returns a process of the same service that starts with this one's state file; `None` before the first
    /// snapshot.
    #[must_use]
    pub fn restarted(&self) -> Option<Self> {
        let image = self.0.applier().image(self.0.present())?;
        let settings = self.0.settings.clone();
        let engine = Runtime::new(&settings.identity.service, &settings.identity.cluster);
        let restarted = ControlContext::new(settings, engine);
        restarted.restore(image);
        Some(Self(Arc::new(restarted)))
    }

    /// Returns the table in force.
    #[must_use]
    pub fn table(&self) -> Table {
        self.0.applier().table()
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// As [`Damper::for_each_kill`](crate::Damper::for_each_kill).
    pub fn for_each_kill(&self, show: impl FnMut(&Kill, Duration)) {
        self.0.engine.for_each_kill(show);
    }

    /// Returns the first report of a stream, in parts.
    pub async fn report(&self) -> Vec<v1::Report> {
        Reporter::new().parts(&self.0).await
    }

    pub(crate) fn engine(&self) -> &Arc<Runtime> {
        &self.0.engine
    }

    /// As [`Damper::for_each_route`](crate::Damper::for_each_route).
    pub fn for_each_route(&self, mut show: impl FnMut(&str, &str, &Counters)) {
        self.0.engine.for_each_route(|service, method, route| show(service, method, &route.state().counters));
    }

    /// As [`Damper::for_each_served`](crate::Damper::for_each_served).
    pub fn for_each_served(&self, show: impl FnMut(&str, &Served)) {
        self.0.engine.methods().for_each(show);
    }

    /// Returns the request bytes that calls in flight buffer.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.0.engine.memory().in_use()
    }
}
