//! What all calls of one route share, without a lock.
//!
//! A [`Route`] binds the rule in force to the route's state. When the table changes the driver makes a new
//! `Route` from the old one: the state is carried over, so a policy change keeps every count; only a window
//! of another shape starts empty. A call in flight keeps the `Route` it began with.

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
mod paying;

pub use self::counters::Counters;
pub use self::gate_status::GateStatus;
pub(crate) use self::paying::Paid;

/// While it is not known how long attempts usually take, so long is long enough.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// So many routes of one process are told apart; the calls of further methods are counted together.
pub const MAX_ROUTES: usize = 1_000;
/// The method under which calls are counted that no route of their own exists for: those beyond
/// [`MAX_ROUTES`], and those whose path names no method. No method has this name, so only rules for every method
/// apply to it. Callees beyond that number share this name likewise.
pub const OTHER_METHOD: &str = "_OTHER";

/// A route with the rule that applies to it.
#[derive(Clone, Debug)]
pub struct Route {
    rule: Option<Arc<Rule>>,
    windows: Arc<Windows>,
    /// The hedge delay of this rule, which changes once per window: see [`Route::hedge_delay`].
    hedge_delay: Arc<PerWindow>,
    state: Arc<RouteState>,
    /// The credit that all routes to the callee share.
    callee: Arc<Purse>,
    /// The same for all calls, whatever rule they began with.
    switch: Arc<KillState>,
}

/// What is counted over the sliding window, whose shape is the rule's.
#[derive(Debug)]
struct Windows {
    attempts: Window,
    /// Those attempts that were retries or hedges.
    repeats: Window,
    /// Whole calls, for the circuit breaker.
    calls: Window,
    spending: BudgetWindow,
}

/// What outlives every rule of the route.
#[derive(Debug, Default)]
pub struct RouteState {
    /// How long successful attempts took lately, those of hedges left out: they are sent to beat one that is
    /// slow, so the slow ones among them are never seen. Made with the first rule that does anything.
    recent: OnceLock<Box<Recent>>,
    /// How long attempts took at least that a hedge overtook, or that were cut; made with the first rule that
    /// hedges by a percentile.
    overtaken: OnceLock<Box<Recent>>,
    /// What pays for retries.
    purse: Purse,
    /// The circuit breaker's state.
    pub circuit: Circuit,
    /// What has happened since the driver started.
    pub counters: Counters,
}

impl RouteState {
    /// How long successful attempts took lately, where that is noted.
    pub(crate) fn recent(&self) -> Option<&Recent> {
        self.recent.get().map(AsRef::as_ref)
    }

    /// An attempt, no hedge, that took so long to succeed.
    pub(crate) fn record(&self, now: Time, duration: Duration) {
        if let Some(recent) = self.recent.get() {
            recent.record(now, duration);
        }
    }

    /// True if the callee should have answered an attempt that had so much time: as long as 99 of 100 successful
    /// ones took lately, or when that was known last.
    pub(crate) fn is_long_enough(&self, given: Duration, now: Time) -> bool {
        let usual = self.recent().and_then(|recent| recent.usual(now).0);
        usual.map_or(given >= LONG_ENOUGH, |usual| bucket_of(given) >= bucket_of(usual))
    }

    /// True if an attempt had less time than they take now.
    pub(crate) fn is_hurried(&self, given: Duration, now: Time) -> bool {
        let is_less = |usual| bucket_of(given) < bucket_of(usual);
        matches!(self.recent().map(|recent| recent.usual(now)), Some((Some(usual), true)) if is_less(usual))
    }

    /// An attempt that took at least so long when it was given up.
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
    /// A route that nothing is known of yet, the first to its callee.
    #[must_use]
    pub fn new(rule: Option<Arc<Rule>>) -> Self {
        Self::to(Arc::default(), rule)
    }

    /// Another route to the same callee that nothing is known of yet.
    #[must_use]
    pub fn beside(&self, rule: Option<Arc<Rule>>) -> Self {
        Self::to(Arc::clone(&self.callee), rule)
    }

    fn to(callee: Arc<Purse>, rule: Option<Arc<Rule>>) -> Self {
        let windows = Arc::new(Windows::new(shape_for(rule.as_deref())));
        let (state, switch) = Default::default();
        Self { rule, windows, hedge_delay: Arc::default(), state, callee, switch }.prepared()
    }

    /// The same route under another rule.
    #[must_use]
    pub fn under(&self, rule: Option<Arc<Rule>>) -> Self {
        let shape = shape_for(rule.as_deref());
        let keep = rule.is_none() || shape == self.window().shape();
        let windows = if keep { Arc::clone(&self.windows) } else { Arc::new(Windows::new(shape)) };
        let (state, switch) = (Arc::clone(&self.state), Arc::clone(&self.switch));
        let callee = Arc::clone(&self.callee);
        Self { rule, windows, hedge_delay: Arc::default(), state, callee, switch }.prepared()
    }

    /// The same route under a switch of its own: for one method of several that are counted together.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { switch: Arc::default(), ..self.clone() }
    }

    /// Makes here what would cost a call a lock and memory.
    fn prepared(self) -> Self {
        let Some(policy) = self.policy() else { return self };
        self.state.recent.get_or_init(Box::default);
        if policy.hedge.is_some_and(|hedge| matches!(hedge.delay, HedgeDelay::Percentile { .. })) {
            self.state.overtaken.get_or_init(Box::default);
        }
        self
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
        &self.windows.attempts
    }

    /// Retries and hedges that failed and succeeded lately.
    #[must_use]
    pub fn repeats(&self) -> &Window {
        &self.windows.repeats
    }

    /// Calls that failed and succeeded lately, where there is a circuit breaker.
    #[must_use]
    pub fn calls(&self) -> &Window {
        &self.windows.calls
    }

    /// Calls started and extra attempts lately, where extra attempts are capped.
    #[must_use]
    pub fn spending(&self) -> &BudgetWindow {
        &self.windows.spending
    }

    /// How long to wait for an answer before a hedge; none while too little is known to say.
    pub(crate) fn hedge_delay(&self, delay: HedgeDelay, now: Time) -> Option<Duration> {
        let (at, min, max) = match delay {
            HedgeDelay::Fixed(delay) => return Some(delay),
            HedgeDelay::Percentile { at, min, max } => (at, min, max),
        };
        // A window's percentile is the same for all calls of the next: it is found once.
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

    /// What kills say of it.
    #[must_use]
    pub fn switch(&self) -> &KillState {
        &self.switch
    }

    /// Tells the route from every other one of the process, for as long as it is known.
    #[must_use]
    pub fn id(&self) -> u64 {
        Arc::as_ptr(&self.state).addr() as u64
    }

    /// What outlives the rule.
    #[must_use]
    pub fn state(&self) -> &RouteState {
        &self.state
    }
}

/// So many samples that one is expected above the percentile, and at least 20.
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
    fn latencies_are_noted_from_the_first_rule_that_does_anything_and_kept_when_it_goes() {
        let ruled = |mode| {
            let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
            Some(Arc::new(Rule::new(pattern, Policy::new(mode), 1).unwrap()))
        };
        let (now, took) = (Time::from_micros(1), Duration::from_millis(10));
        let median = |route: &Route| route.state().recent().and_then(|recent| recent.median(now, 1));
        let route = Route::new(None).under(ruled(Mode::Off));
        route.state().record(now, took);
        assert!(route.state().recent().is_none(), "nobody asks for them");
        let route = route.under(ruled(Mode::Observe));
        assert_eq!(median(&route), None, "what was before is not known");
        route.state().record(now, took);
        assert!(median(&route).is_some());
        let route = route.under(None).under(ruled(Mode::Enforce));
        assert!(median(&route).is_some());
    }
}
