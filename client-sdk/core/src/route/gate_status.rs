//! Status of a route's gates: whether they would block a call now, read without side effects.
//!
//! It is shown to operators. A failing call counts itself before it is checked, so the status is that of the
//! next failing call. Nothing is reserved, counted or admitted.

use crate::gates::circuit::Phase;
use crate::route::Route;
use crate::time::Time;
use crate::time::window::Counts;

/// Status of a route's gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateStatus {
    /// Counts of the retry breaker's window.
    pub window: Counts,
    /// The retry breaker blocks the next retry, and attempts have failed in the window. Credit starts empty:
    /// without a failure that is not shown.
    pub breaker_refuses: bool,
    /// The budget blocks the next retry or hedge.
    pub budget_refuses: bool,
    /// Phase of the circuit breaker; `None` without one.
    pub circuit: Option<Phase>,
    /// A kill stops retries and hedges.
    pub killed: bool,
}

impl Route {
    /// Returns the status of the gates; `None` without a rule and a kill.
    #[must_use]
    pub fn standing(&self, now: Time) -> Option<GateStatus> {
        let killed = self.switch().stops_repeats(now);
        if self.rule().is_none() && !killed {
            return None;
        }
        let Some(policy) = self.policy() else {
            return Some(GateStatus { killed, ..GateStatus::default() });
        };
        let settings = policy.circuit_breaker.as_ref();
        let window = self.window().counts(now);
        let blocks_next_retry =
            policy.retry_breaker.is_some_and(|breaker| self.blocks_next_retry(&breaker, now));
        Some(GateStatus {
            window,
            breaker_refuses: blocks_next_retry && window.failures > 0,
            budget_refuses: policy.budget.is_some_and(|cap| !self.spending().has_room(&cap, now)),
            circuit: settings.map(|settings| self.state().circuit.phase(settings, now)),
            killed,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fault::Ratio;
    use crate::gates::circuit::{CircuitDecision, Outcome};
    use crate::policy::{BreakerMode, Budget, CircuitBreaker, Mode, Policy, Retry, RetryBreaker};
    use crate::rules::kill::{Kill, TimedKill};
    use crate::{Pattern, Rule};

    const NOW: Time = Time::from_micros(50_000_000);

    fn route(change: impl FnOnce(&mut Policy)) -> Route {
        let mut policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
        change(&mut policy);
        let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
        Route::new(Some(Arc::new(Rule::new(pattern, policy, 1).unwrap())))
    }

    fn stands(route: &Route, now: Time) -> GateStatus {
        let standing = route.standing(now).unwrap();
        assert_eq!(route.standing(now), Some(standing), "looking takes nothing");
        standing
    }

    #[test]
    fn route_without_a_rule_has_a_status_only_under_a_kill() {
        let route = Route::new(None);
        assert_eq!(route.standing(NOW), None);
        let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
        let kill = Arc::new(Kill::new(pattern, false, "why".to_owned(), 1).unwrap());
        route.switch().obey(&[TimedKill { kill, until: NOW + Duration::from_secs(1) }]);
        assert_eq!(stands(&route, NOW), GateStatus { killed: true, ..GateStatus::default() });
        assert_eq!(route.standing(NOW + Duration::from_secs(1)), None);
    }

    #[test]
    fn breaker_blocks_when_the_next_failure_would_exceed_it() {
        let route = route(|policy| {
            let breaker = policy.retry_breaker.as_mut().unwrap();
            (breaker.mode, breaker.min_failures) = (BreakerMode::Ratio, 0);
        });
        (0..30).for_each(|_| route.window().count_success(NOW));
        for failures in 1..=5 {
            route.window().count_failure(NOW);
            let standing = stands(&route, NOW);
            assert_eq!(standing.window, Counts { failures, successes: 30 });
            assert_eq!(standing.breaker_refuses, failures >= 3, "{failures}");
        }
        assert!(!stands(&route, NOW + Duration::from_secs(11)).breaker_refuses, "nothing fails");
    }

    #[test]
    fn breaker_blocks_without_credit() {
        let route = route(|_| {});
        let breaker = RetryBreaker::default();
        assert!(!stands(&route, NOW).breaker_refuses, "no credit yet, and nothing fails");
        route.count(true, NOW);
        assert!(stands(&route, NOW).breaker_refuses);
        (0..10).for_each(|_| route.earn(&breaker));
        assert!(!stands(&route, NOW).breaker_refuses);
        assert!(route.pay(&breaker, NOW).is_some());
        assert!(stands(&route, NOW).breaker_refuses);
    }

    #[test]
    fn budget_blocks_without_room_for_one_more() {
        let budget = Budget { ratio: Ratio::from_bp(1_000), min_per_second: 0 };
        let route = route(|policy| policy.budget = Some(budget));
        assert!(stands(&route, NOW).budget_refuses, "no calls, so no room");
        (0..10).for_each(|_| route.spending().count_call(NOW));
        assert!(!stands(&route, NOW).budget_refuses);
        assert!(route.spending().reserve(&budget, NOW).is_some());
        assert!(stands(&route, NOW).budget_refuses);
    }

    #[test]
    fn expired_open_circuit_is_half_open_before_the_next_call() {
        let settings = CircuitBreaker::default();
        let route = route(|policy| policy.circuit_breaker = Some(settings));
        assert_eq!(stands(&route, NOW).circuit, Some(Phase::Closed));
        for _ in 0..settings.consecutive_failures {
            let circuit = &route.state().circuit;
            let closed = CircuitDecision::Closed { since_ms: 0 };
            circuit.ended(&settings, closed, Outcome::Failed, route.calls(), NOW);
        }
        assert_eq!(stands(&route, NOW).circuit, Some(Phase::Open));
        let later = NOW + settings.open_for;
        assert_eq!(stands(&route, later).circuit, Some(Phase::HalfOpen));
        assert!(matches!(route.state().circuit.admit(&settings, later), CircuitDecision::Probe { .. }));
    }
}
