//! Where the gates of a route stand: what they would say to a call now, read without taking anything.
//!
//! It is what operators are shown. A call that fails counts itself before it asks, so the question here is the
//! one that the next failing call would ask; nothing is reserved, booked or admitted for it.

use crate::gates::circuit::Phase;
use crate::route::Route;
use crate::time::Time;
use crate::time::window::Counts;

/// Where the gates of a route stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateStatus {
    /// Of the retry breaker's window.
    pub window: Counts,
    /// Attempts have failed in the window, and a call that fails now is not retried, because of the retry breaker.
    /// Credit starts empty: without a failure that is nothing to be shown.
    pub breaker_refuses: bool,
    /// A call that fails or takes long now is neither retried nor hedged: the budget is used up.
    pub budget_refuses: bool,
    /// Of the circuit breaker; none if there is none.
    pub circuit: Option<Phase>,
    /// A kill stops what is repeated.
    pub killed: bool,
}

impl Route {
    /// Where its gates stand; none if there is neither a rule nor a kill.
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
        let holds_back = policy.retry_breaker.is_some_and(|breaker| self.holds_back(&breaker, now));
        Some(GateStatus {
            window,
            breaker_refuses: holds_back && window.failures > 0,
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
    fn a_route_without_a_rule_stands_nowhere_unless_a_kill_stops_it() {
        let route = Route::new(None);
        assert_eq!(route.standing(NOW), None);
        let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
        let kill = Arc::new(Kill::new(pattern, false, "why".to_owned(), 1).unwrap());
        route.switch().obey(&[TimedKill { kill, until: NOW + Duration::from_secs(1) }]);
        assert_eq!(stands(&route, NOW), GateStatus { killed: true, ..GateStatus::default() });
        assert_eq!(route.standing(NOW + Duration::from_secs(1)), None);
    }

    #[test]
    fn the_breaker_refuses_when_the_next_failure_would_be_one_too_many() {
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
    fn the_breaker_refuses_while_there_is_no_credit() {
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
    fn the_budget_refuses_when_there_is_no_room_for_one_more() {
        let budget = Budget { ratio: Ratio::from_bp(1_000), min_per_second: 0 };
        let route = route(|policy| policy.budget = Some(budget));
        assert!(stands(&route, NOW).budget_refuses, "no calls, so no room");
        (0..10).for_each(|_| route.spending().count_call(NOW));
        assert!(!stands(&route, NOW).budget_refuses);
        assert!(route.spending().reserve(&budget, NOW).is_some());
        assert!(stands(&route, NOW).budget_refuses);
    }

    #[test]
    fn an_open_circuit_whose_time_is_over_is_half_open_before_anybody_asks() {
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
