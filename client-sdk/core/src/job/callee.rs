//! Whether a delivery to a callee may begin, asked per lane, not per job.
//!
//! `stop_when` -> hold of the callee -> hold of the method -> pace
//!
//! State of one queue and one callee service. The answer "hold" is for all waiting jobs, so holding a million
//! jobs costs one timer. A method that fails while other methods of the callee succeed holds its own jobs
//! only. A lost or released delivery is no evidence about the callee.
//!
//! The scheduler is one task, so this is a plain struct. Bounds of the queue over all callees are in
//! [`Flow`](super::Flow).

use std::collections::HashMap;
use std::time::Duration;

use super::gate::Gate;
use super::hold::{Hold, probe};
use super::{OnStop, QueueSettings};
use crate::gates::breaker;
use crate::outcome::classify::Failure;
use crate::route::latency::Recent;
use crate::time::Time;
use crate::time::window::{Window, WindowShape};

/// Methods with a count of their own; failures of further ones count for the callee only.
const MAX_METHODS: usize = 1_000;
/// Time between two checks of `stop_when`.
const STOP_INTERVAL: Duration = Duration::from_secs(1);

/// May deliveries of a lane begin?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// At most this many, at least 1.
    Deliver(u32),
    /// One, to find out if the callee still fails.
    Probe,
    /// None.
    Hold {
        /// Time of the next check, if no delivery ends before; `None`: at the end of a delivery.
        until: Option<Time>,
        /// Reason.
        why: HoldReason,
    },
}

/// Why no delivery of a lane may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// Too few recent deliveries succeeded, see `policy.stop_when`.
    StopWhen,
    /// The callee failed `hold_after` times in a row.
    CalleeFailing,
    /// The method failed `hold_after` times in a row, other methods of the callee did not.
    MethodFailing,
    /// As many deliveries as the callee bears are in flight.
    Pace,
    /// As many deliveries as the queue allows are in flight.
    MaxInFlight,
    /// The rate of the queue is used up.
    Rate,
}

impl HoldReason {
    /// Returns the name in statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StopWhen => "stop_when",
            Self::CalleeFailing => "callee_failing",
            Self::MethodFailing => "method_failing",
            Self::Pace => "pace",
            Self::MaxInFlight => "max_in_flight",
            Self::Rate => "rate",
        }
    }
}

/// How a delivery ended, as evidence about the callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The callee succeeded.
    Done {
        /// Duration of the delivery.
        took: Duration,
    },
    /// The callee failed.
    Failed(Failure),
    /// No evidence: released, lost, cancelled or never begun.
    Unknown,
}

impl Outcome {
    /// Returns true for a success, or a failure that is not the callee's; `None` without evidence.
    pub(super) fn is_success(&self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Failed(failure) => Some(!breaker::is_failure(None, failure)),
            Self::Done { .. } => Some(true),
        }
    }
}

/// Deliveries of one queue to one callee service.
#[derive(Debug)]
pub struct Callee {
    gate: Gate,
    methods: HashMap<String, Method>,
    attempts: Window,
    latencies: Box<Recent>,
}

/// A method with deliveries in flight or failures in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Method {
    hold: Hold,
    in_flight: u32,
}

impl Default for Callee {
    fn default() -> Self {
        Self {
            gate: Gate::default(),
            methods: HashMap::new(),
            attempts: Window::new(WindowShape::default()),
            latencies: Box::default(),
        }
    }
}

impl Callee {
    /// Checks if deliveries to a method may begin.
    #[must_use]
    pub fn admit(&self, settings: &QueueSettings, method: &str, now: Time) -> Admit {
        if settings.on_stop == OnStop::Hold && self.has_few_successes(settings, now) {
            return Admit::Hold { until: Some(now + STOP_INTERVAL), why: HoldReason::StopWhen };
        }
        let room = match self.gate.admit(settings.hold_after, settings.max_in_flight, now) {
            Admit::Deliver(room) => room,
            other => return other,
        };
        match self.methods.get(method) {
            Some(method) if method.hold.is_held(settings.hold_after) => {
                probe(method.hold, method.in_flight, now, HoldReason::MethodFailing)
            }
            _ => Admit::Deliver(room),
        }
    }

    /// Returns true if `stop_when` ends a job whose delivery failed after this time and was counted. Only if
    /// `on_stop` is `dead`.
    #[must_use]
    pub fn stops(&self, settings: &QueueSettings, took: Duration, now: Time) -> bool {
        let stop_when = settings.policy.stop_when.filter(|_| settings.on_stop == OnStop::Dead);
        stop_when.is_some_and(|stop_when| stop_when.is_slow(&self.latencies, took, now))
            || settings.on_stop == OnStop::Dead && self.has_few_successes(settings, now)
    }

    /// Returns the number of deliveries in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.gate.in_flight
    }

    /// Counts a delivery that begins as [`Self::admit`] allowed, or was in flight when the process began.
    pub fn begins(&mut self, settings: &QueueSettings, method: &str, now: Time) {
        self.gate.begins(settings.hold_after, now);
        if let Some(method) = self.method(method) {
            method.in_flight = method.in_flight.saturating_add(1);
            if method.hold.is_held(settings.hold_after) {
                method.hold.probe_begins(now);
            }
        }
    }

    /// Counts the end of a delivery.
    pub fn ended(&mut self, settings: &QueueSettings, method: &str, outcome: &Outcome, now: Time) {
        self.gate.ends();
        if let Some(method) = self.methods.get_mut(method) {
            method.in_flight = method.in_flight.saturating_sub(1);
        }
        if let Outcome::Done { took } = outcome {
            self.latencies.record(now, *took);
        }
        match outcome.is_success() {
            Some(true) => self.succeeded(settings, method, now),
            Some(false) => self.failed(settings, method, now),
            None => {}
        }
        self.forget_idle(method);
    }

    /// Counts that a delivery did not begin after all. If it was a probe, another one may be it.
    pub fn unused(&mut self, method: &str, was_probe: bool, now: Time) {
        self.gate.ends();
        if was_probe {
            self.gate.hold.probe_is_unused(now);
        }
        if let Some(method) = self.methods.get_mut(method) {
            method.in_flight = method.in_flight.saturating_sub(1);
            if was_probe {
                method.hold.probe_is_unused(now);
            }
        }
        self.forget_idle(method);
    }

    fn forget_idle(&mut self, method: &str) {
        if self.methods.get(method).is_some_and(Method::is_idle) {
            self.methods.remove(method);
        }
    }

    fn failed(&mut self, settings: &QueueSettings, method: &str, now: Time) {
        self.attempts.count_failure(now);
        self.gate.failed(settings.hold_after, now);
        if let Some(method) = self.method(method) {
            method.hold.failed(settings.hold_after, now);
        }
    }

    /// Counts a success, or a failure that is not the callee's.
    fn succeeded(&mut self, settings: &QueueSettings, method: &str, now: Time) {
        self.attempts.count_success(now);
        if self.gate.hold.is_held(settings.hold_after) {
            // All methods failed with the callee.
            self.methods.values_mut().for_each(|method| method.hold.succeeded());
            self.methods.retain(|_, method| !method.is_idle());
        }
        self.gate.succeeded(settings.max_in_flight);
        if let Some(method) = self.methods.get_mut(method) {
            method.hold.succeeded();
        }
    }

    fn has_few_successes(&self, settings: &QueueSettings, now: Time) -> bool {
        settings.policy.stop_when.is_some_and(|stop_when| stop_when.has_few_successes(&self.attempts, now))
    }

    fn method(&mut self, name: &str) -> Option<&mut Method> {
        if !self.methods.contains_key(name) {
            if self.methods.len() >= MAX_METHODS {
                self.methods.retain(|_, method| method.in_flight > 0);
            }
            if self.methods.len() >= MAX_METHODS {
                return None;
            }
            self.methods.insert(name.to_owned(), Method::default());
        }
        self.methods.get_mut(name)
    }
}

impl Method {
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.hold.is_clear()
    }
}
