//! What pays for a route's retries: its own purse, or, where its traffic is too little for a token, the one token
//! that all routes to the callee share.

use super::Route;
use crate::gates::breaker;
use crate::gates::credit::{Purse, Terms};
use crate::policy::{BreakerMode, RetryBreaker};
use crate::time::Time;
use crate::time::window::Counts;

/// What a retry was paid with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paid {
    /// Nothing: the ratio admits it.
    Nothing,
    /// A token of the route.
    Route,
    /// The callee's token.
    Callee,
}

impl Route {
    /// Counts an attempt that ended; the credit's cap follows the traffic, once per bucket.
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

    /// A first attempt succeeded.
    pub(crate) fn earn(&self, breaker: &RetryBreaker) {
        let (_, purse, terms) = self.account(breaker);
        purse.earn(terms);
    }

    /// An attempt failed.
    pub(crate) fn spoil(&self, breaker: &RetryBreaker) {
        self.account(breaker).1.fail();
    }

    /// Admits a retry of an attempt that failed and was counted, and takes what it costs.
    pub(crate) fn pay(&self, breaker: &RetryBreaker, now: Time) -> Option<Paid> {
        let counts = self.window().counts(now);
        if breaker::is_free(breaker, counts) {
            return Some(Paid::Nothing);
        }
        let (paid, purse, terms) = self.account(breaker);
        (breaker::is_within_guards(breaker, counts) && purse.pay(terms)).then_some(paid)
    }

    /// True if the next attempt that fails would not be retried.
    pub(crate) fn holds_back(&self, breaker: &RetryBreaker, now: Time) -> bool {
        let Counts { failures, successes } = self.window().counts(now);
        let counts = Counts { failures: failures.saturating_add(1), successes };
        let (_, purse, terms) = self.account(breaker);
        let pays = breaker::is_within_guards(breaker, counts) && purse.has_token(terms);
        !breaker::is_free(breaker, counts) && !pays
    }

    /// What a retry was paid with comes back: it succeeded, or was not sent.
    pub(crate) fn give_back(&self, paid: Option<Paid>) {
        let Some((paid, breaker)) = paid.zip(self.breaker()) else { return };
        match paid {
            Paid::Nothing => {}
            Paid::Route => self.state.purse.give_back(self.own_terms(breaker)),
            Paid::Callee => self.callee.give_back(Terms::floor(breaker.earn)),
        }
    }

    /// Observe mode: what was paid for is not sent, and ends as the next first attempt does.
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

    /// Where a retry's token comes from.
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
