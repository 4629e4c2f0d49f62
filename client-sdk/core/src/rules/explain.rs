//! Explanation of a route: the winning rule, the cuts of guards, the rules that lost and why, and the
//! winner's bound on load.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fault::Ratio;
use crate::policy::{BreakerMode, Mode, Policy, RetryBreaker};
use crate::rules::key::RouteKey;
use crate::rules::pattern::Pattern;
use crate::rules::table::{Rule, Table, Tightened};

/// The rule of a route, and why.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// The rule that applies, before guards; `None` if no pattern matches.
    pub winner: Option<Arc<Rule>>,
    /// The rule tightened by guards.
    pub in_force: Option<Rule>,
    /// Cuts of guards.
    pub cuts: Vec<Tightened>,
    /// Other rules that match, most specific first.
    pub losers: Vec<ShadowedRule>,
}

/// A rule that matches a route but does not apply.
#[derive(Clone, Debug)]
pub struct ShadowedRule {
    /// The rule.
    pub rule: Arc<Rule>,
    /// Part in which it is less specific than the winner.
    pub reason: String,
}

impl Explanation {
    /// Looks the route up in the table.
    #[must_use]
    pub fn of(table: &Table, route: &RouteKey) -> Self {
        let mut matching = table.matching(route);
        let winner = matching.next().cloned();
        let losers = match &winner {
            Some(winner) => matching.map(|rule| ShadowedRule::against(winner, rule)).collect(),
            None => Vec::new(),
        };
        let tightened = winner.as_ref().map(|winner| table.tighten(winner, route));
        let (in_force, cuts) = tightened.map_or((None, Vec::new()), |(rule, cuts)| (Some(rule), cuts));
        Self { winner, in_force, cuts, losers }
    }
}

impl ShadowedRule {
    fn against(winner: &Rule, rule: &Arc<Rule>) -> Self {
        let reason = first_difference(winner.pattern(), rule.pattern());
        Self { rule: Arc::clone(rule), reason }
    }
}

/// Returns the first part that differs, in the order of comparison.
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
            format!("{name} {loser} is less specific than {winner}")
        })
}

/// Upper limit of attempts on one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Maximum attempts per call.
    pub max_attempts: u32,
    /// Attempts per call in the long run while all retries fail: 1 + the lower of the retry breaker's and the
    /// budget's share. `free_retries` per window come on top. `None`: only `max_attempts` limits.
    pub steady: Option<Ratio>,
    /// Extra attempts per window and process in addition, whatever the traffic.
    pub free_retries: u32,
    /// Length of the window; zero if no gate uses one.
    pub window: Duration,
}

impl Bound {
    /// Returns the bound of calls under a policy; one attempt without a policy or in observe mode.
    #[must_use]
    pub fn of(policy: Option<&Policy>) -> Self {
        let repeats = policy.filter(|policy| policy.mode == Mode::Enforce && policy.repeats());
        let once =
            Self { max_attempts: 1, steady: Some(Ratio::ONE), free_retries: 0, window: Duration::ZERO };
        let Some(policy) = repeats else { return once };
        let max_attempts = policy.max_attempts();
        let by_breaker = policy.retry_breaker.map(|breaker| by_breaker(policy, &breaker));
        let by_budget = policy.budget.map(|budget| {
            let free = u128::from(budget.min_per_second) * policy.window_shape().length().as_millis() / 1_000;
            (budget.ratio, u32::try_from(free).unwrap_or(u32::MAX))
        });
        match by_breaker.into_iter().chain(by_budget).min() {
            None => Self { max_attempts, steady: None, ..once },
            Some((ratio, free_retries)) => Self {
                max_attempts,
                steady: Some(Ratio::from_bp(Ratio::ONE.bp() + ratio.bp())),
                free_retries,
                window: policy.window_shape().length(),
            },
        }
    }
}

/// Returns the share per call that a breaker admits, and the number per window in addition.
fn by_breaker(policy: &Policy, breaker: &RetryBreaker) -> (Ratio, u32) {
    let by_ratio = (breaker.ratio, breaker.min_failures);
    let by_hedge = (breaker.ratio, breaker.min_failures.max(breaker.min_samples.saturating_sub(1)));
    let by_retry = match breaker.mode {
        BreakerMode::Credit => (breaker.earn, 1),
        BreakerMode::Ratio => by_ratio,
    };
    if policy.hedge.is_some() { by_hedge.max(by_retry) } else { by_retry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Budget, Hedge, HedgeDelay, Mode, Retry};

    fn rule(words: &str, policy: Policy) -> Arc<Rule> {
        let parts: Vec<&str> = words.split(' ').collect();
        let pattern = Pattern::parse(parts[0], parts[1], parts[2], parts[3]).unwrap();
        Arc::new(Rule::new(pattern, policy, 1).unwrap())
    }

    fn off() -> Policy {
        Policy::new(Mode::Off)
    }

    #[test]
    fn callee_decides_before_the_caller() {
        let table: Table = [
            "shop online * *",
            "* * orders *",
            "* * orders a.Orders/*",
            "shop * orders a.Orders/*",
            "* online orders a.Orders/Place",
            "shop online orders a.Orders/Cancel",
        ]
        .map(|words| rule(words, off()))
        .into_iter()
        .collect();
        let route = RouteKey::new("shop", "online", "orders", "a.Orders/Place").unwrap();
        let explanation = Explanation::of(&table, &route);
        assert_eq!(explanation.winner.unwrap().pattern().to_string(), "* online orders a.Orders/Place");
        let losers: Vec<_> = explanation
            .losers
            .iter()
            .map(|loser| (loser.rule.pattern().to_string(), loser.reason.as_str()))
            .collect();
        let service = "callee_method a.Orders/* is less specific than a.Orders/Place";
        let expected = [
            ("shop * orders a.Orders/*", service),
            ("* * orders a.Orders/*", service),
            ("* * orders *", "callee_method * is less specific than a.Orders/Place"),
            ("shop online * *", "callee_service * is less specific than orders"),
        ];
        assert_eq!(losers, expected.map(|(words, reason)| (words.to_owned(), reason)));
    }

    #[test]
    fn winner_that_is_off_does_not_fall_through() {
        let wide = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
        let table: Table = [rule("* * * *", wide), rule("* * orders *", off())].into_iter().collect();
        let route = RouteKey::new("shop", "online", "orders", "a.Orders/Place").unwrap();
        assert_eq!(table.winner(&route).unwrap().policy().mode, Mode::Off);
    }

    #[test]
    fn without_a_match_there_is_no_winner() {
        let table: Table = [rule("* * stock *", off())].into_iter().collect();
        let route = RouteKey::new("shop", "online", "orders", "a.Orders/Place").unwrap();
        let explanation = Explanation::of(&table, &route);
        assert!(explanation.winner.is_none() && explanation.losers.is_empty());
    }

    #[test]
    fn bound_is_max_attempts_at_once_and_a_ratio_in_the_long_run() {
        let mut policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
        let bound = |policy: &Policy| Bound::of(Some(policy));
        let once =
            Bound { max_attempts: 1, steady: Some(Ratio::ONE), free_retries: 0, window: Duration::ZERO };
        let steady = Some(Ratio::from_bp(11_000));
        let window = Duration::from_secs(10);
        let by_credit =
            Bound { max_attempts: 3, steady: Some(Ratio::from_bp(10_200)), free_retries: 1, window };
        assert_eq!(bound(&policy), by_credit);
        policy.hedge = Some(Hedge { delay: HedgeDelay::Fixed(window), max_hedges: 1 });
        assert_eq!(bound(&policy), Bound { steady, ..by_credit }, "hedges go by the ratio");
        policy.hedge = None;
        let ratio = RetryBreaker { mode: BreakerMode::Ratio, min_failures: 3, ..RetryBreaker::default() };
        policy.retry_breaker = Some(ratio);
        assert_eq!(bound(&policy), Bound { max_attempts: 3, steady, free_retries: 3, window });
        policy.budget = Some(Budget { ratio: Ratio::from_bp(500), min_per_second: 2 });
        let steady = Some(Ratio::from_bp(10_500));
        assert_eq!(bound(&policy), Bound { max_attempts: 3, steady, free_retries: 20, window });
        policy.budget = None;
        policy.retry_breaker = None;
        assert_eq!(bound(&policy), Bound { max_attempts: 3, steady: None, ..once });
        policy.mode = Mode::Observe;
        assert_eq!(bound(&policy), once);
        assert_eq!(Bound::of(None), once);
    }
}
