//! The histograms: how long calls and attempts take, and how long calls wait in between.
//!
//! The recorder is asked for the handles of a callee with its first call, and again each time the counters are
//! published: a recorder that is installed late, or that forgets what was idle for long, is served too. A
//! call takes what is there: no lock, no allocation.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ::metrics::{Histogram, Label};
use arc_swap::{ArcSwap, ArcSwapOption};
use damper_core::{AttemptKind, Time};

use super::{ATTEMPT_DURATION, CALL_DURATION, METHOD_LABEL, RETRY_DELAY, TARGET_LABEL};

/// What the application asked for beyond the usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Detail {
    /// Histograms of each route, in place of those of its callee.
    pub(crate) per_route: bool,
}

/// The handles for one callee, or for one of its routes.
#[derive(Debug)]
struct Handles {
    call: Histogram,
    attempt: Histogram,
    delay: Histogram,
}

/// All handles for one callee.
pub(crate) struct OfCallee {
    callee: Arc<str>,
    all: ArcSwapOption<Handles>,
    /// By method; none unless asked for.
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
        CallTimes { handles, began: now, under_way: 0, idle_since: None, waited: None }
    }

    /// Asks the recorder of this thread again for the handles that are in use.
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

/// Measures a call.
#[derive(Debug)]
pub(crate) struct CallTimes {
    handles: Arc<Handles>,
    began: Time,
    /// So many attempts.
    under_way: u32,
    /// No attempt is under way since then; none before the first.
    idle_since: Option<Time>,
    /// In seconds, before repeats; none if there was no wait.
    waited: Option<f64>,
}

impl CallTimes {
    /// An attempt was sent.
    pub(crate) fn sent(&mut self, kind: AttemptKind, now: Time) -> AttemptTimes {
        self.under_way += 1;
        if let Some(since) = self.idle_since.take()
            && matches!(kind, AttemptKind::Retry | AttemptKind::Hedge)
        {
            self.add_wait(since, now);
        }
        AttemptTimes { handles: Some(Arc::clone(&self.handles)), sent_at: now }
    }

    /// An attempt ended, and not because the call did.
    pub(crate) fn attempt_ended(&mut self, now: Time) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.idle_since = Some(now);
        }
    }

    /// The call ended; also in the middle of a wait.
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

/// Measures an attempt.
#[derive(Debug)]
pub(crate) struct AttemptTimes {
    /// None once it has ended.
    handles: Option<Arc<Handles>>,
    sent_at: Time,
}

impl AttemptTimes {
    /// Of no attempt.
    pub(crate) fn none() -> Self {
        Self { handles: None, sent_at: Time::ZERO }
    }

    /// True if its end is still to be told.
    pub(crate) fn are_kept(&self) -> bool {
        self.handles.is_some()
    }

    /// It ended.
    pub(crate) fn ended(&mut self, now: Time) {
        if let Some(handles) = self.handles.take() {
            handles.attempt.record(now.since(self.sent_at).as_secs_f64());
        }
    }
}
