//! Why this rule: the winner of a route, every rule that lost and what made it lose, and what the winner can
//! add to the load at most.

use std::fmt;
use std::sync::Arc;

use crate::fault::Ratio;
use crate::key::RouteKey;
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::table::{Rule, Table};

/// Which rule applies to a route, and why.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The rule that applies; none where no pattern matches.
    pub winner: Option<Arc<Rule>>,
    /// The other rules that match, the nearest first.
    pub losers: Vec<Loser>,
}

/// A rule that matches a route but does not apply.
#[derive(Clone, Debug)]
pub struct Loser {
    /// The rule.
    pub rule: Arc<Rule>,
    /// The part in which it is less exact than the winner.
    pub reason: String,
}

impl Explanation {
    /// Looks the route up in the table.
    #[must_use]
    pub fn of(table: &Table, route: &RouteKey) -> Self {
        let mut matching = table.matching(route);
        let winner = matching.next().cloned();
        let losers = match &winner {
            Some(winner) => matching.map(|rule| Loser::against(winner, rule)).collect(),
            None => Vec::new(),
        };
        Self { winner, losers }
    }
}

impl Loser {
    fn against(winner: &Rule, rule: &Arc<Rule>) -> Self {
        let reason = first_difference(winner.pattern(), rule.pattern());
        Self {
            rule: Arc::clone(rule),
            reason,
        }
    }
}

/// The first part, in the order in which parts are compared, that differs.
fn first_difference(winner: &Pattern, loser: &Pattern) -> String {
    let parts: [(&str, &dyn fmt::Display, &dyn fmt::Display); 4] = [
        ("callee_service", &winner.callee_service, &loser.callee_service),
        ("callee_method", &winner.callee_method, &loser.callee_method),
        ("caller_service", &winner.caller_service, &loser.caller_service),
        ("caller_cluster", &winner.caller_cluster, &loser.caller_cluster),
    ];
    let as_text = parts.map(|(name, winner, loser)| (name, winner.to_string(), loser.to_string()));
    as_text
        .into_iter()
        .find(|(_, winner, loser)| winner != loser)
        .map_or_else(String::new, |(name, winner, loser)| {
            format!("{name} {loser} is less exact than {winner}")
        })
}

/// What repeating can add on one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Attempts per call at most.
    pub max_attempts: u32,
    /// Attempts per call in the long run, whatever fails: 1 + the breaker's ratio, beyond its `min_failures`
    /// per window. None: no better bound than `max_attempts`.
    pub steady: Option<Ratio>,
}

impl Bound {
    /// The bound of calls under a policy; of one attempt where nothing is repeated.
    #[must_use]
    pub fn of(policy: Option<&Policy>) -> Self {
        let retry = policy
            .filter(|policy| policy.mode == crate::Mode::Enforce)
            .and_then(Policy::repeats);
        let Some(retry) = retry else {
            return Self {
                max_attempts: 1,
                steady: Some(Ratio::ONE),
            };
        };
        let breaker = policy.and_then(|policy| policy.retry_breaker);
        let steady = breaker.map(|breaker| Ratio::from_bp(Ratio::ONE.bp() + breaker.ratio.bp()));
        Self {
            max_attempts: retry.max_attempts,
            steady,
        }
    }
}
