//! Requests that the store refused, because a bound of the queue is used up over all servers.
//!
//! The server waits before it asks again: until the time that the store returned, else for
//! [`ASK_AGAIN_AFTER`], since no event reports the end of a delivery of another server. The end of one of its
//! own deliveries ends the wait.

use std::collections::HashMap;
use std::time::Duration;

use damper_core::Time;
use damper_core::job::{Admit, HoldReason};

use crate::store::Refused;

/// Wait after a refusal that ends with a delivery of any server.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Shortest wait: a high rate would have the servers ask for each job.
const SHORTEST: Duration = Duration::from_millis(20);
/// Longest wait: a probe of another server can end before its time.
const LONGEST: Duration = Duration::from_secs(1);

/// Refusals of a queue that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    queue: Option<Refusal>,
    callees: HashMap<String, Refusal>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    why: HoldReason,
    until: Time,
}

impl Refusals {
    /// Adds a refusal of a request for jobs of a callee.
    pub(crate) fn add(&mut self, callee: &str, refused: Refused, now: Time) {
        let wait = refused.wait.unwrap_or(ASK_AGAIN_AFTER).clamp(SHORTEST, LONGEST);
        let refusal = Refusal { why: refused.why, until: now + wait };
        if matches!(refused.why, HoldReason::MaxInFlight | HoldReason::Rate) {
            self.queue = Some(refusal);
        } else {
            self.callees.insert(callee.to_owned(), refusal);
        }
    }

    /// Returns the hold of the whole queue.
    pub(crate) fn of_queue(&self, now: Time) -> Option<Admit> {
        self.queue.and_then(|refusal| refusal.hold(now))
    }

    /// Returns the hold of a callee, or of the whole queue.
    pub(crate) fn of_callee(&self, callee: &str, now: Time) -> Option<Admit> {
        let callee = || self.callees.get(callee).and_then(|refusal| refusal.hold(now));
        self.of_queue(now).or_else(callee)
    }

    /// A delivery of this server has ended: what it used may be free. The time of `rate` stays.
    pub(crate) fn ended(&mut self, callee: &str) {
        self.queue = self.queue.filter(|refusal| refusal.why != HoldReason::MaxInFlight);
        self.callees.remove(callee);
    }
}

impl Refusal {
    fn hold(self, now: Time) -> Option<Admit> {
        (now < self.until).then_some(Admit::Hold { until: Some(self.until), why: self.why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    fn refused(why: HoldReason, wait_ms: Option<u64>) -> Refused {
        Refused { why, wait: wait_ms.map(Duration::from_millis) }
    }

    #[test]
    fn refused_server_asks_again_after_a_wait() {
        use HoldReason::{CalleeFailing, MaxInFlight, Pace, Rate};
        for (why, wait, until) in [
            (MaxInFlight, None, 100),
            (Pace, None, 100),
            (Rate, Some(1), 20),
            (Rate, Some(400), 400),
            (CalleeFailing, Some(31_000), 1_000),
        ] {
            let mut refusals = Refusals::default();
            refusals.add("stock", refused(why, wait), at(0));
            let held = Some(Admit::Hold { until: Some(at(until)), why });
            assert_eq!(refusals.of_callee("stock", at(until - 1)), held, "{why:?}");
            assert_eq!(refusals.of_callee("stock", at(until)), None, "{why:?}");
        }
    }

    #[test]
    fn refusal_of_a_callee_holds_only_its_jobs() {
        let mut refusals = Refusals::default();
        refusals.add("stock", refused(HoldReason::Pace, None), at(0));
        assert_eq!((refusals.of_queue(at(1)), refusals.of_callee("mail", at(1))), (None, None));
        refusals.add("stock", refused(HoldReason::MaxInFlight, None), at(0));
        assert!(refusals.of_callee("mail", at(1)).is_some());
    }

    #[test]
    fn own_delivery_that_ends_allows_a_request() {
        let mut refusals = Refusals::default();
        refusals.add("stock", refused(HoldReason::Pace, None), at(0));
        refusals.add("stock", refused(HoldReason::MaxInFlight, None), at(0));
        refusals.ended("stock");
        assert_eq!(refusals.of_callee("stock", at(1)), None);
        refusals.add("stock", refused(HoldReason::Rate, Some(500)), at(0));
        refusals.ended("stock");
        assert!(refusals.of_callee("stock", at(1)).is_some(), "the rate does not depend on it");
    }
}
