//! Retry quota of the AWS SDKs' standard mode: a retry takes its cost, by default twice as much after a
//! timeout, and is blocked below that. A successful retry returns its cost, a successful first attempt
//! returns 1.
//!
//! In the SDKs one quota serves a client's calls; here each hop has its own.

use damper_core::Code;

use crate::scenario::PeerQuota;

/// Return for a success without cost.
const FOR_A_FIRST_SUCCESS: u32 = 1;

/// Quota of one process on one route.
#[derive(Debug)]
pub(super) struct Quota {
    settings: PeerQuota,
    tokens: u32,
}

impl Quota {
    pub(super) fn new(settings: PeerQuota) -> Self {
        Self { settings, tokens: settings.tokens }
    }

    /// Records a successful call, after a retry of this cost or without one.
    pub(super) fn succeeded(&mut self, paid: Option<u32>) {
        self.tokens = (self.tokens + paid.unwrap_or(FOR_A_FIRST_SUCCESS)).min(self.settings.tokens);
    }

    /// Pays for a retry after this code and returns its cost; `None`: not enough tokens.
    pub(super) fn withdraw(&mut self, code: Code) -> Option<u32> {
        let timed_out = code == Code::DeadlineExceeded;
        let cost = if timed_out { self.settings.timeout_cost } else { self.settings.cost };
        self.tokens = self.tokens.checked_sub(cost)?;
        Some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paid(quota: &mut Quota, code: Code) -> usize {
        (0..1_000).filter(|_| quota.withdraw(code).is_some()).count()
    }

    #[test]
    fn quota_pays_a_hundred_retries_half_after_timeouts() {
        let quota = || Quota::new(PeerQuota::default());
        assert_eq!(paid(&mut quota(), Code::Unavailable), 100);
        assert_eq!(paid(&mut quota(), Code::DeadlineExceeded), 50);
    }

    #[test]
    fn successful_retry_is_free_and_five_successes_pay_for_one() {
        let mut quota = Quota::new(PeerQuota::default());
        for code in [Code::Unavailable, Code::DeadlineExceeded].repeat(1_000) {
            let cost = quota.withdraw(code);
            quota.succeeded(cost);
        }
        assert_eq!(paid(&mut quota, Code::Unavailable), 100);
        (0..14).for_each(|_| quota.succeeded(None));
        assert_eq!(paid(&mut quota, Code::Unavailable), 2);
        (0..10_000).for_each(|_| quota.succeeded(None));
        assert_eq!(paid(&mut quota, Code::Unavailable), 100, "never more than at the beginning");
    }
}
