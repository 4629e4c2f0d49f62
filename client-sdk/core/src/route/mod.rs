//! Routes: the state that all calls of one route share, without a lock.
//!
//! A [`Route`] binds the rule in force to the route's state. When the table changes, the driver makes a new
//! `Route` from the old one. The state is carried over, so a policy change keeps all counts; only a window of
//! another shape starts empty. A call in flight keeps the `Route` it began with.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::latency::{PerWindow, Recent, bucket_of};
use crate::fault::Percent;
use crate::gates::budget::BudgetWindow;
use crate::gates::circuit::Circuit;
use crate::gates::credit::Purse;
use crate::policy::{HedgeDelay, Policy};
use crate::rules::kill::KillState;
use crate::rules::table::Rule;
use crate::time::Time;
use crate::time::window::{Window, WindowShape};

mod counters;
mod gate_status;
pub mod latency;
mod payment;
mod stop_when;

pub use self::counters::Counters;
pub use self::gate_status::GateStatus;
pub(crate) use self::payment::Paid;

/// A sufficient time for an attempt while typical latencies are unknown.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// Maximum number of routes per process; calls of further methods are counted together.
pub const MAX_ROUTES: usize = 1_000;
/// Method of calls without a route of their own: those beyond [`MAX_ROUTES`], and those whose path names no
/// method. No method has this name, so only rules for all methods apply. Callees beyond the limit share this
/// name too.
pub const OTHER_METHOD: &str = "_OTHER";

/// A route with the rule that applies to it.
#[derive(Clone, Debug)]
pub struct Route {
    rule: Option<Arc<Rule>>,
    windows: Arc<Windows>,
    /// Hedge delay of this rule, which changes once per window: see [`Route::hedge_delay`].
    hedge_delay: Arc<PerWindow>,
    state: Arc<RouteState>,
    /// Credit that all routes to the callee share.
    callee: Arc<Purse>,
    /// Kills in force, for all calls of the route.
    switch: Arc<KillState>,
}

/// Sliding windows in the shape of the rule.
#[derive(Debug)]
struct Windows {
    attempts: Window,
    /// Retries and hedges.
    repeats: Window,
    /// Whole calls, for the circuit breaker.
    calls: Window,
    spending: BudgetWindow,
}

/// State of the route that outlives its rules.
#[derive(Debug, Default)]
pub struct RouteState {
    /// Latencies of recent successful attempts, without hedges: hedges race slow attempts, so their own slow
    /// ones are never seen. Created with the first active rule.
    recent: OnceLock<Box<Recent>>,
    /// Minimum latencies of attempts that were overtaken by a hedge, or cut. Created with the first rule that
    /// hedges by a percentile.
    overtaken: OnceLock<Box<Recent>>,
    /// Credit for retries.
    purse: Purse,
    /// State of the circuit breaker.
    pub circuit: Circuit,
    /// Counts since the driver started.
    pub counters: Counters,
}

impl RouteState {
    /// Returns the latencies of recent successful attempts, if recorded.
    pub(crate) fn recent(&self) -> Option<&Recent> {
        self.recent.get().map(AsRef::as_ref)
    }

    /// Records the latency of a successful attempt that is not a hedge.
    pub(crate) fn record(&self, now: Time, duration: Duration) {
        if let Some(recent) = self.recent.get() {
            recent.record(now, duration);
        }
    }

    /// Returns true if the callee had enough time to respond: the recent 99th percentile, or the last one
    /// known.
    pub(crate) fn is_long_enough(&self, given: Duration, now: Time) -> bool {
        let usual = self.recent().and_then(|recent| recent.usual(now).0);
        usual.map_or(given >= LONG_ENOUGH, |usual| bucket_of(given) >= bucket_of(usual))
    }

    /// Returns true if an attempt had less time than attempts need now.
    pub(crate) fn is_hurried(&self, given: Duration, now: Time) -> bool {
        let is_less = |usual| bucket_of(given) < bucket_of(usual);
        matches!(self.recent().map(|recent| recent.usual(now)), Some((Some(usual), true)) if is_less(usual))
    }

    /// Records the minimum latency of an attempt that was given up.
    pub(crate) fn record_at_least(&self, now: Time, duration: Duration) {
        if let Some(overtaken) = self.overtaken.get() {
            overtaken.record(now, duration);
        }
    }
}

impl Windows {
    fn new(shape: WindowShape) -> Self {
        let window = || Window::new(shape);
        Self { attempts: window(), repeats: window(), calls: window(), spending: BudgetWindow::new(shape) }
    }
}

impl Route {
    /// Returns a new route, the first to its callee.
    #[must_use]
    pub fn new(rule: Option<Arc<Rule>>) -> Self {
        Self::to(Arc::default(), rule)
    }

    /// Returns a new route to the same callee.
    #[must_use]
    pub fn sibling(&self, rule: Option<Arc<Rule>>) -> Self {
        Self::to(Arc::clone(&self.callee), rule)
    }

    fn to(callee: Arc<Purse>, rule: Option<Arc<Rule>>) -> Self {
        let windows = Arc::new(Windows::new(shape_for(rule.as_deref())));
        let (state, switch) = Default::default();
        Self { rule, windows, hedge_delay: Arc::default(), state, callee, switch }.prepared()
    }

    /// Returns the same route with another rule.
    #[must_use]
    pub fn under(&self, rule: Option<Arc<Rule>>) -> Self {
        let shape = shape_for(rule.as_deref());
        let keep = rule.is_none() || shape == self.window().shape();
        let windows = if keep { Arc::clone(&self.windows) } else { Arc::new(Windows::new(shape)) };
        let (state, switch) = (Arc::clone(&self.state), Arc::clone(&self.switch));
        let callee = Arc::clone(&self.callee);
        Self { rule, windows, hedge_delay: Arc::default(), state, callee, switch }.prepared()
    }

    /// Returns the same route with its own kill state, for one of several methods that are counted together.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { switch: Arc::default(), ..self.clone() }
    }

    /// Allocates lazily created state, so that no call does.
    fn prepared(self) -> Self {
        let Some(policy) = self.policy() else { return self };
        self.state.recent.get_or_init(Box::default);
        if policy.hedge.is_some_and(|hedge| matches!(hedge.delay, HedgeDelay::Percentile { .. })) {
            self.state.overtaken.get_or_init(Box::default);
        }
        self
    }

    /// Returns the rule; `None` if no pattern matches.
    #[must_use]
    pub fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Returns the policy of an active rule.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.rule.as_deref().map(Rule::policy).filter(|policy| policy.governs())
    }

    /// Returns recent failures and successes of attempts.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.windows.attempts
    }

    /// Returns recent failures and successes of retries and hedges.
    #[must_use]
    pub fn repeats(&self) -> &Window {
        &self.windows.repeats
    }

    /// Returns recent failures and successes of calls, for the circuit breaker.
    #[must_use]
    pub fn calls(&self) -> &Window {
        &self.windows.calls
    }

    /// Returns recent calls and extra attempts, for the budget.
    #[must_use]
    pub fn spending(&self) -> &BudgetWindow {
        &self.windows.spending
    }

    /// Returns the wait for a response before a hedge; `None` while there are too few samples.
    pub(crate) fn hedge_delay(&self, delay: HedgeDelay, now: Time) -> Option<Duration> {
        let (at, min, max) = match delay {
            HedgeDelay::Fixed(delay) => return Some(delay),
            HedgeDelay::Percentile { at, min, max } => (at, min, max),
        };
        // A window's percentile is the same for all calls of the next window, so it is computed once.
        let delay = match self.hedge_delay.get(now) {
            (true, known) => known,
            (false, _) => {
                let overtaken = self.state.overtaken.get().map(AsRef::as_ref);
                let samples = samples_for(at);
                let found = self.state.recent()?.complete_percentile(overtaken, now, at, samples);
                self.hedge_delay.put(now, found);
                found
            }
        };
        delay.map(|delay| delay.clamp(min, max.max(min)))
    }

    /// Returns the kill state.
    #[must_use]
    pub fn switch(&self) -> &KillState {
        &self.switch
    }

    /// Returns an id that is unique in the process as long as the route exists.
    #[must_use]
    pub fn id(&self) -> u64 {
        Arc::as_ptr(&self.state).addr() as u64
    }

    /// Returns the state that outlives the rule.
    #[must_use]
    pub fn state(&self) -> &RouteState {
        &self.state
    }
}

/// Returns the samples needed: one is expected above the percentile, and at least 20.
fn samples_for(at: Percent) -> u32 {
    10_000_u32.div_ceil(10_000_u32.saturating_sub(at.hundredths()).max(1)).max(20)
}

fn shape_for(rule: Option<&Rule>) -> WindowShape {
    rule.map_or_else(WindowShape::default, |rule| rule.policy().window_shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Mode;
    use crate::rules::pattern::Pattern;

    #[test]
    fn latencies_are_kept_from_the_first_active_rule_on() {
        let ruled = |mode| {
            let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
            Some(Arc::new(Rule::new(pattern, Policy::new(mode), 1).unwrap()))
        };
        let (now, took) = (Time::from_micros(1), Duration::from_millis(10));
        let median = |route: &Route| route.state().recent().and_then(|recent| recent.median(now, 1));
        let route = Route::new(None).under(ruled(Mode::Off));
        route.state().record(now, took);
        assert!(route.state().recent().is_none(), "no active rule needs them");
        let route = route.under(ruled(Mode::Observe));
        assert_eq!(median(&route), None, "what was before is not known");
        route.state().record(now, took);
        assert!(median(&route).is_some());
        let route = route.under(None).under(ruled(Mode::Enforce));
        assert!(median(&route).is_some());
    }
}
