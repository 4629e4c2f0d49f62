//! Payment of retries: by the route's own purse, or, if its traffic earns less than a token, by the one token
//! that all routes to the callee share.

use super::Route;
use crate::gates::breaker;
use crate::gates::credit::{Purse, Terms};
use crate::policy::{BreakerMode, RetryBreaker};
use crate::time::Time;
use crate::time::window::Counts;

/// Payment of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paid {
    /// Free: the ratio admits it.
    Nothing,
    /// A token of the route.
    Route,
    /// The callee's token.
    Callee,
}

impl Route {
    /// Counts an ended attempt. The credit's cap follows the traffic, once per bucket.
    pub(crate) fn count(&self, is_failure: bool, now: Time) {
        let attempts = self.window();
        if attempts.count(is_failure, now)
            && let Some(breaker) = self.policy().and_then(|policy| policy.retry_breaker)
        {
            let repeats = self.repeats().counts(now).total();
            let first = attempts.counts(now).total().saturating_sub(repeats);
            self.state.purse.set_cap(breaker.earn, first);
        }
    }

    /// Credits a successful first attempt.
    pub(crate) fn earn(&self, breaker: &RetryBreaker) {
        let (_, purse, terms) = self.account(breaker);
        purse.earn(terms);
    }

    /// Records a failed attempt.
    pub(crate) fn spoil(&self, breaker: &RetryBreaker) {
        self.account(breaker).1.fail();
    }

    /// Admits a retry of a failed and counted attempt, and takes its cost.
    pub(crate) fn pay(&self, breaker: &RetryBreaker, now: Time) -> Option<Paid> {
        let counts = self.window().counts(now);
        if breaker::is_free(breaker, counts) {
            return Some(Paid::Nothing);
        }
        let (paid, purse, terms) = self.account(breaker);
        (breaker::is_within_guards(breaker, counts) && purse.pay(terms)).then_some(paid)
    }

    /// Returns true if the next failing attempt would not be retried.
    pub(crate) fn blocks_next_retry(&self, breaker: &RetryBreaker, now: Time) -> bool {
        let Counts { failures, successes } = self.window().counts(now);
        let counts = Counts { failures: failures.saturating_add(1), successes };
        let (_, purse, terms) = self.account(breaker);
        let pays = breaker::is_within_guards(breaker, counts) && purse.has_token(terms);
        !breaker::is_free(breaker, counts) && !pays
    }

    /// Refunds the payment of a retry that succeeded or was not sent.
    pub(crate) fn give_back(&self, paid: Option<Paid>) {
        let Some((paid, breaker)) = paid.zip(self.breaker()) else { return };
        match paid {
            Paid::Nothing => {}
            Paid::Route => self.state.purse.give_back(self.own_terms(breaker)),
            Paid::Callee => self.callee.give_back(Terms::floor(breaker.earn)),
        }
    }

    /// Observe mode: records a paid retry that is not sent and ends as the next first attempt does.
    pub(crate) fn owe(&self, paid: Option<Paid>) {
        match paid {
            None | Some(Paid::Nothing) => {}
            Some(Paid::Route) => self.state.purse.owe(),
            Some(Paid::Callee) => self.callee.owe(),
        }
    }

    fn breaker(&self) -> Option<&RetryBreaker> {
        self.policy()?.retry_breaker.as_ref()
    }

    /// Returns the purse that pays for a retry.
    fn account(&self, breaker: &RetryBreaker) -> (Paid, &Purse, Terms) {
        let terms = self.own_terms(breaker);
        if breaker.mode == BreakerMode::Ratio || terms.hold_a_token() {
            (Paid::Route, &self.state.purse, terms)
        } else {
            (Paid::Callee, &self.callee, Terms::floor(breaker.earn))
        }
    }

    fn own_terms(&self, breaker: &RetryBreaker) -> Terms {
        match breaker.mode {
            BreakerMode::Ratio => Terms::tokens(breaker.min_failures),
            BreakerMode::Credit => Terms::of_traffic(&self.state.purse, breaker.earn),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fault::Ratio;
    use crate::policy::{Mode, Policy, Retry};
    use crate::time::window::WindowShape;
    use crate::{Pattern, Rule};

    const NOW: Time = Time::from_micros(50_000_000);

    fn rule(breaker: RetryBreaker) -> Option<Arc<Rule>> {
        let (retry, retry_breaker) = (Some(Retry::default()), Some(breaker));
        let policy = Policy { retry, retry_breaker, ..Policy::new(Mode::Enforce) };
        let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
        Some(Arc::new(Rule::new(pattern, policy, 1).unwrap()))
    }

    fn payments(route: &Route, breaker: &RetryBreaker) -> usize {
        std::iter::from_fn(|| route.pay(breaker, NOW)).count()
    }

    #[test]
    fn policy_change_keeps_credit() {
        let breaker = RetryBreaker::default();
        let shape = WindowShape { buckets: 5, ..breaker.window };
        let other = RetryBreaker { earn: Ratio::from_bp(1_000), window: shape, ..breaker };
        let saved = || {
            let route = Route::new(rule(breaker));
            // 500 calls in the window cap the credit at ten tokens, which 500 successes earn.
            route.state.purse.set_cap(breaker.earn, 500);
            (0..500).for_each(|_| route.earn(&breaker));
            route
        };
        assert_eq!(payments(&saved(), &breaker), 10);
        for (changed, breaker) in
            [(saved().under(rule(other)), other), (saved().under(None).under(rule(breaker)), breaker)]
        {
            assert_eq!(payments(&changed, &breaker), 10);
        }
        // The callee's one token, earned by ten successes in a row.
        let quiet = Route::new(rule(breaker));
        (0..10).for_each(|_| quiet.earn(&breaker));
        assert_eq!(payments(&quiet.under(rule(other)), &other), 1);
    }

    #[test]
    fn credit_takes_at_most_16_bytes_per_route() {
        assert!(size_of::<Purse>() + size_of::<Arc<Purse>>() <= 16);
    }
}
