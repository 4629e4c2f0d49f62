//! Histograms: duration of calls and attempts, and waits between attempts.
//!
//! The handles of a callee are requested from the recorder with its first call and again with each export.
//! This also serves recorders that are installed late or drop idle series. A call uses the existing handles:
//! no lock, no allocation.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ::metrics::{Histogram, Label};
use arc_swap::{ArcSwap, ArcSwapOption};
use damper_core::{AttemptKind, Time};

use super::{ATTEMPT_DURATION, CALL_DURATION, METHOD_LABEL, RETRY_DELAY, TARGET_LABEL};

/// Level of detail of the histograms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Detail {
    /// Histograms per route, in place of those per callee.
    pub(crate) per_route: bool,
}

/// Handles of a callee or route.
#[derive(Debug)]
struct Handles {
    call: Histogram,
    attempt: Histogram,
    delay: Histogram,
}

/// All handles of a callee.
pub(crate) struct OfCallee {
    callee: Arc<str>,
    all: ArcSwapOption<Handles>,
    /// By method; `None` unless requested.
    routes: Option<ArcSwap<HashMap<Arc<str>, Arc<Handles>>>>,
}

impl OfCallee {
    pub(crate) fn new(callee: &str, detail: Detail) -> Self {
        let routes = detail.per_route.then(ArcSwap::default);
        Self { callee: callee.into(), all: ArcSwapOption::empty(), routes }
    }

    /// Begins to measure a call of this method.
    pub(crate) fn call_begins(&self, method: &str, now: Time) -> CallTimes {
        let handles = match &self.routes {
            None => self.handles(),
            Some(routes) => self.handles_of(routes, method),
        };
        CallTimes { handles, began: now, in_flight: 0, idle_since: None, waited: None }
    }

    /// Requests the handles in use from the current recorder again.
    pub(crate) fn take_again(&self) {
        if self.all.load().is_some() {
            self.all.store(Some(Arc::new(self.take(None))));
        }
        if let Some(routes) = &self.routes {
            routes.rcu(|known| {
                let taken = known.keys().map(|method| (Arc::clone(method), self.take_for(method)));
                taken.collect::<HashMap<_, _>>()
            });
        }
    }

    fn handles(&self) -> Arc<Handles> {
        self.all.load_full().unwrap_or_else(|| {
            let handles = Arc::new(self.take(None));
            self.all.store(Some(Arc::clone(&handles)));
            handles
        })
    }

    fn handles_of(&self, routes: &ArcSwap<HashMap<Arc<str>, Arc<Handles>>>, method: &str) -> Arc<Handles> {
        if let Some(handles) = routes.load().get(method) {
            return Arc::clone(handles);
        }
        let method = Arc::from(method);
        let handles = self.take_for(&method);
        routes.rcu(|known| {
            let mut more = HashMap::clone(known);
            more.insert(Arc::clone(&method), Arc::clone(&handles));
            more
        });
        handles
    }

    fn take_for(&self, method: &Arc<str>) -> Arc<Handles> {
        Arc::new(self.take(Some(Label::new(METHOD_LABEL, Arc::clone(method)))))
    }

    fn take(&self, method: Option<Label>) -> Handles {
        let target = Label::new(TARGET_LABEL, Arc::clone(&self.callee));
        let labels: Vec<_> = method.into_iter().chain([target]).collect();
        Handles {
            call: ::metrics::histogram!(target: "damper", CALL_DURATION, labels.clone()),
            attempt: ::metrics::histogram!(target: "damper", ATTEMPT_DURATION, labels.clone()),
            delay: ::metrics::histogram!(target: "damper", RETRY_DELAY, labels),
        }
    }
}

impl fmt::Debug for OfCallee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfCallee").field("callee", &self.callee).finish_non_exhaustive()
    }
}

/// Times of a call.
#[derive(Debug)]
pub(crate) struct CallTimes {
    handles: Arc<Handles>,
    began: Time,
    /// Attempts in flight.
    in_flight: u32,
    /// Time since which no attempt is in flight; `None` before the first.
    idle_since: Option<Time>,
    /// Seconds waited before extra attempts; `None` without a wait.
    waited: Option<f64>,
}

impl CallTimes {
    /// Records an attempt that is sent.
    pub(crate) fn sent(&mut self, kind: AttemptKind, now: Time) -> AttemptTimes {
        self.in_flight += 1;
        if let Some(since) = self.idle_since.take()
            && matches!(kind, AttemptKind::Retry | AttemptKind::Hedge)
        {
            self.add_wait(since, now);
        }
        AttemptTimes { handles: Some(Arc::clone(&self.handles)), sent_at: now }
    }

    /// Records the end of an attempt before that of the call.
    pub(crate) fn attempt_ended(&mut self, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            self.idle_since = Some(now);
        }
    }

    /// Records the end of the call, also during a wait.
    pub(crate) fn ended(&mut self, now: Time) {
        if let Some(since) = self.idle_since.take().filter(|since| *since < now) {
            self.add_wait(since, now);
        }
        if let Some(waited) = self.waited {
            self.handles.delay.record(waited);
        }
        self.handles.call.record(now.since(self.began).as_secs_f64());
    }

    fn add_wait(&mut self, since: Time, now: Time) {
        *self.waited.get_or_insert(0.0) += now.since(since).as_secs_f64();
    }
}

/// Times of an attempt.
#[derive(Debug)]
pub(crate) struct AttemptTimes {
    /// `None` once it has ended.
    handles: Option<Arc<Handles>>,
    sent_at: Time,
}

impl AttemptTimes {
    /// Returns the times of no attempt.
    pub(crate) fn none() -> Self {
        Self { handles: None, sent_at: Time::ZERO }
    }

    /// Returns true if its end is still to be recorded.
    pub(crate) fn are_kept(&self) -> bool {
        self.handles.is_some()
    }

    /// Records the end.
    pub(crate) fn ended(&mut self, now: Time) {
        if let Some(handles) = self.handles.take() {
            handles.attempt.record(now.since(self.sent_at).as_secs_f64());
        }
    }
}
