//! A service's Damper without a connection, for the fuzz targets: they hand over tables and responses of the
//! control plane in the order they like, and see what is kept.
//!
//! Only with the feature `fuzzing`. It is no part of the public API and decides nothing: what a response does is
//! done by the same code as on a stream, except for the waiting around it.

use std::sync::Arc;
use std::time::Duration;

use damper_core::repeat_limit::Served;
use damper_core::{Counters, Faults, Kill, Table};
use damper_proto::v1;
use damper_proto::v1::server_message::Kind;

use super::applier::{ApplyOutcome, Position, Response, Told};
use super::report::Reporter;
use super::{ControlContext, Status};
use crate::client::ClientLayer;
use crate::options::Options;
use crate::routes::Runtime;
use crate::server::ServerLayer;

/// The Damper of one service.
#[derive(Debug)]
pub struct FuzzHarness(Arc<ControlContext>);

/// What became of a response.
#[derive(Debug, PartialEq)]
pub enum Received {
    /// It is in force but for these.
    Applied(Vec<v1::Refusal>),
    /// It changed nothing.
    Unchanged,
    /// The stream would be given up.
    Broken(&'static str),
}

impl FuzzHarness {
    /// One of a service of this name, without rules.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn new(service: &str) -> Result<Self, Faults> {
        let options = Options::new(["http://127.0.0.1:1"]).service(service).environment(|_| None);
        let settings = options.resolve()?;
        let engine = Runtime::new(&settings.identity.service, &settings.identity.cluster);
        Ok(Self(Arc::new(ControlContext::new(settings, engine))))
    }

    /// Puts a table in force.
    pub fn apply(&self, table: Table) {
        self.0.engine.apply(table);
    }

    /// A response of the control plane, as on a stream.
    pub fn receive(&self, message: v1::ServerMessage) -> Received {
        let v1::ServerMessage { epoch, revision, nonce: _, kind, kills, commit } = message;
        let response = match kind {
            Some(Kind::Snapshot(page)) => Response::Snapshot(page),
            Some(Kind::Delta(delta)) => Response::Delta(delta),
            Some(Kind::Bookmark(v1::Bookmark {})) => Response::Bookmark,
            Some(Kind::Goodbye(_)) => return Received::Broken("the server said goodbye"),
            Some(Kind::ReportSettings(settings)) => {
                let mut reporter = Reporter::new();
                reporter.set(&settings);
                _ = reporter.wait();
                return Received::Unchanged;
            }
            None => return Received::Unchanged,
        };
        let kills = kills.map(|set| Told { set, at: self.0.engine.clock().now() });
        match self.0.apply(Position { epoch, revision, commit }, response, kills) {
            ApplyOutcome::Applied { refused, whole: _ } => Received::Applied(refused),
            ApplyOutcome::Confirmed | ApplyOutcome::Stale | ApplyOutcome::Incomplete => Received::Unchanged,
            ApplyOutcome::OutOfStep(problem) => Received::Broken(problem),
        }
    }

    /// A stream ends and the next one begins.
    pub fn begin_stream(&self) {
        self.0.applier().begin_stream();
    }

    /// The epoch and revision held.
    #[must_use]
    pub fn position(&self) -> Option<(String, u64)> {
        self.0.applier().position().map(|at| (at.epoch.clone(), at.revision))
    }

    /// A process of the same service that starts with what this one would keep on disk; none before the first
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

    /// The table in force by what was received.
    #[must_use]
    pub fn table(&self) -> Table {
        self.0.applier().table()
    }

    /// What it would say of itself.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// As [`Damper::for_each_kill`](crate::Damper::for_each_kill).
    pub fn for_each_kill(&self, show: impl FnMut(&Kill, Duration)) {
        self.0.engine.for_each_kill(show);
    }

    /// The first report of a stream, in parts.
    pub async fn report(&self) -> Vec<v1::Report> {
        Reporter::new().parts(&self.0).await
    }

    /// As [`Damper::client_layer`](crate::Damper::client_layer).
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn client_layer(&self, callee_service: &str) -> Result<ClientLayer, Faults> {
        let callee = self.0.engine.callee(callee_service)?;
        Ok(ClientLayer::new(Arc::clone(&self.0.engine), callee))
    }

    /// As [`Damper::server_layer`](crate::Damper::server_layer).
    #[must_use]
    pub fn server_layer(&self) -> ServerLayer {
        ServerLayer::new(Arc::clone(&self.0.engine))
    }

    /// As [`Damper::for_each_route`](crate::Damper::for_each_route).
    pub fn for_each_route(&self, mut show: impl FnMut(&str, &str, &Counters)) {
        self.0.engine.for_each_route(|service, method, route| show(service, method, &route.state().counters));
    }

    /// As [`Damper::for_each_served`](crate::Damper::for_each_served).
    pub fn for_each_served(&self, show: impl FnMut(&str, &Served)) {
        self.0.engine.methods().for_each(show);
    }

    /// The request bytes that calls under way keep.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.0.engine.memory().in_use()
    }
}
