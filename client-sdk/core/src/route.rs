//! What all calls of one route share, without a lock.
//!
//! A [`Route`] binds the rule in force to the route's state. When the table changes the driver makes a new
//! `Route` from the old one: the state is carried over, so a policy change keeps every count; only a window
//! of another shape starts empty. A call in flight keeps the `Route` it began with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::Code;
use crate::fate::{Ending, Fate};
use crate::latency::{Histogram, Recent};
use crate::policy::Policy;
use crate::table::Rule;
use crate::window::{Window, WindowShape};

/// So many routes of one process are told apart; the calls of further methods are counted together.
pub const MAX_ROUTES: usize = 1_000;
/// The method under which calls are counted that no route of their own exists for: those beyond
/// [`MAX_ROUTES`], and those whose path names no method. No method has this name, so no rule applies to it.
pub const OTHER_METHOD: &str = "_OTHER";

/// A route with the rule that applies to it.
#[derive(Clone, Debug)]
pub struct Route {
    rule: Option<Arc<Rule>>,
    window: Arc<Window>,
    state: Arc<RouteState>,
}

/// What outlives every rule of the route.
#[derive(Debug, Default)]
pub struct RouteState {
    /// How long successful attempts took lately.
    pub recent: Recent,
    /// What has happened since the driver started.
    pub counters: Counters,
}

impl Route {
    /// A route that nothing is known of yet.
    #[must_use]
    pub fn new(rule: Option<Arc<Rule>>) -> Self {
        let window = Arc::new(Window::new(shape_for(rule.as_deref())));
        Self { rule, window, state: Arc::default() }
    }

    /// The same route under another rule.
    #[must_use]
    pub fn under(&self, rule: Option<Arc<Rule>>) -> Self {
        let shape = shape_for(rule.as_deref());
        let keep = rule.is_none() || shape == self.window.shape();
        let window = if keep { Arc::clone(&self.window) } else { Arc::new(Window::new(shape)) };
        Self { rule, window, state: Arc::clone(&self.state) }
    }

    /// The rule that applies; none where no pattern matches.
    #[must_use]
    pub fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// The policy, where a rule applies that does anything at all.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.rule.as_deref().map(Rule::policy).filter(|policy| policy.governs())
    }

    /// Failures and successes lately.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// What outlives the rule.
    #[must_use]
    pub fn state(&self) -> &RouteState {
        &self.state
    }
}

fn shape_for(rule: Option<&Rule>) -> WindowShape {
    rule.map_or_else(WindowShape::default, |rule| rule.policy().window_shape())
}

/// What has happened on a route since the driver started. Every call that ended has exactly one ending.
#[derive(Debug)]
pub struct Counters {
    calls: AtomicU64,
    unsent: AtomicU64,
    retries: AtomicU64,
    transparent_resends: AtomicU64,
    without_context: AtomicU64,
    outer_loop: AtomicU64,
    real: [AtomicU64; Fate::ALL.len()],
    would: [AtomicU64; Fate::ALL.len()],
    codes: [AtomicU64; Code::ALL.len()],
    latency: Histogram,
}

impl Counters {
    /// Calls begun.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Sends: every call's first (unless there was no time left for it), retries and transparent resends.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        let sent = self.calls().saturating_sub(self.unsent.load(Ordering::Relaxed));
        sent + self.retries() + self.transparent_resends()
    }

    /// Sends after a failure.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Sends repeated because the server had provably not seen the first.
    #[must_use]
    pub fn transparent_resends(&self) -> u64 {
        self.transparent_resends.load(Ordering::Relaxed)
    }

    /// Calls made outside any request's context in a process that serves requests.
    #[must_use]
    pub fn without_context(&self) -> u64 {
        self.without_context.load(Ordering::Relaxed)
    }

    /// Calls made in serving a request in which one of the route had already failed for good: somebody's loop
    /// around it.
    #[must_use]
    pub fn outer_loop_calls(&self) -> u64 {
        self.outer_loop.load(Ordering::Relaxed)
    }

    /// Calls that ended so.
    #[must_use]
    pub fn ended(&self, ending: Ending) -> u64 {
        self.of(ending).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Attempts that ended with this code.
    #[must_use]
    pub fn code(&self, code: Code) -> u64 {
        self.codes.get(code as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// How long calls took, from their beginning to their end.
    #[must_use]
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    /// Counts a call that the driver made outside any request's context although it serves requests.
    pub fn count_without_context(&self) {
        add(&self.without_context);
    }

    /// Counts a call that the driver made in a request in which one of the route had already failed for good.
    pub fn count_outer_loop(&self) {
        add(&self.outer_loop);
    }

    pub(crate) fn count_call(&self) {
        add(&self.calls);
    }

    pub(crate) fn count_unsent(&self) {
        add(&self.unsent);
    }

    pub(crate) fn count_retry(&self) {
        add(&self.retries);
    }

    pub(crate) fn count_transparent_resend(&self) {
        add(&self.transparent_resends);
    }

    pub(crate) fn count_code(&self, code: Code) {
        if let Some(count) = self.codes.get(code as usize) {
            add(count);
        }
    }

    pub(crate) fn count_ending(&self, ending: Ending) {
        if let Some(count) = self.of(ending) {
            add(count);
        }
    }

    fn of(&self, ending: Ending) -> Option<&AtomicU64> {
        let counts = if ending.would { &self.would } else { &self.real };
        counts.get(ending.fate as usize)
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            calls: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            transparent_resends: AtomicU64::new(0),
            without_context: AtomicU64::new(0),
            outer_loop: AtomicU64::new(0),
            real: [const { AtomicU64::new(0) }; Fate::ALL.len()],
            would: [const { AtomicU64::new(0) }; Fate::ALL.len()],
            codes: [const { AtomicU64::new(0) }; Code::ALL.len()],
            latency: Histogram::default(),
        }
    }
}
