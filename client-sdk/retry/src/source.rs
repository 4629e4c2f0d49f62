//! Where a handle has its route from: its own settings, or the rules of a control plane.

use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use damper_core::{Finish, Route, SendAttempt, Stop, Time, Verdict};

use crate::clock::Clock;

/// Source of the route of a handle.
pub trait Source {
    /// State of one call.
    type Call: Watch;

    /// Returns the clock of the route's times.
    fn clock(&self) -> Clock;

    /// Begins a call.
    fn begin(&self, now: Time) -> Begun<Self::Call>;
}

/// A call that begins.
#[derive(Debug)]
pub struct Begun<C> {
    /// State of the call.
    pub call: C,
    /// Deadline from outside.
    pub deadline: Option<Time>,
    /// The retry flag of the request being served.
    pub flag: Option<u32>,
}

/// State of one call: its route, and what observes the call.
pub trait Watch {
    /// Returns the route.
    fn route(&self) -> &Route;

    /// Returns the stop condition that code sets.
    fn stop(&self) -> Option<&Stop> {
        None
    }

    /// Records an attempt that starts.
    fn sent(&mut self, _send: &SendAttempt, _now: Time) {}

    /// Runs a part of an attempt.
    fn enter<T>(&mut self, _attempt: u32, run: impl FnOnce() -> T) -> T {
        run()
    }

    /// Records the end of an attempt; `None`: it was cut at its limit.
    fn attempt_ended(&mut self, _attempt: u32, _verdict: Option<&Verdict>, _now: Time) {}

    /// Records the end of the call.
    fn ended(&mut self, _finish: &Finish, _now: Time) {}

    /// Changes the verdict on an attempt by what the driver knows about the calls within it.
    fn classify(&self, _attempt: u32, verdict: Verdict) -> Verdict {
        verdict
    }

    /// Prepares for kill switches that change before the next step, if the call is between attempts.
    fn listen_for_kills(&mut self, _is_between_attempts: bool) {}

    /// Ready when a kill switch was set; the call then requests its next step.
    fn poll_kill(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Settings in the process: a handle without a control plane.
#[derive(Debug)]
pub struct Local {
    clock: Clock,
    config: ArcSwap<LocalConfig>,
}

/// The route of a local handle with what no policy has.
#[derive(Debug)]
pub struct LocalConfig {
    pub(crate) route: Route,
    pub(crate) stop: Option<Stop>,
}

impl Local {
    pub(crate) fn new(config: LocalConfig) -> Self {
        Self { clock: Clock::new(), config: ArcSwap::from_pointee(config) }
    }

    pub(crate) fn config(&self) -> Arc<LocalConfig> {
        self.config.load_full()
    }

    pub(crate) fn replace(&self, config: LocalConfig) {
        self.config.store(Arc::new(config));
    }
}

impl Source for Local {
    type Call = Arc<LocalConfig>;

    fn clock(&self) -> Clock {
        self.clock
    }

    fn begin(&self, _now: Time) -> Begun<Arc<LocalConfig>> {
        Begun { call: self.config(), deadline: None, flag: None }
    }
}

impl Watch for Arc<LocalConfig> {
    fn route(&self) -> &Route {
        &self.route
    }

    fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }
}
