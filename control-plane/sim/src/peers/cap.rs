//! Cap of a peer's retries, of any of the three kinds.

use damper_core::{Code, Time};

use super::quota::Quota;
use super::throttling::Throttling;
use super::tps::TpsBudget;
use crate::scenario::PeerCap;

/// Cap of one process on one route.
#[derive(Debug)]
pub(super) enum Cap {
    None,
    Budget(TpsBudget),
    Throttling(Throttling),
    Quota(Quota),
}

impl Cap {
    pub(super) fn new(cap: Option<PeerCap>) -> Self {
        match cap {
            None => Self::None,
            Some(PeerCap::Budget(budget)) => Self::Budget(TpsBudget::new(budget)),
            Some(PeerCap::Throttling(throttling)) => Self::Throttling(Throttling::new(throttling)),
            Some(PeerCap::Quota(quota)) => Self::Quota(Quota::new(quota)),
        }
    }

    /// Records a successful call, after a retry of this cost or without one.
    pub(super) fn succeeded(&mut self, paid: Option<u32>, now: Time) {
        match self {
            Self::None => {}
            Self::Budget(budget) => budget.deposit(now),
            Self::Throttling(throttling) => throttling.succeeded(),
            Self::Quota(quota) => quota.succeeded(paid),
        }
    }

    /// Records a failed attempt with a retryable code, including the last one.
    pub(super) fn failed(&mut self) {
        if let Self::Throttling(throttling) = self {
            throttling.failed();
        }
    }

    /// Pays for a retry after this code and returns its cost; `None`: blocked.
    pub(super) fn withdraw(&mut self, code: Code, now: Time) -> Option<u32> {
        match self {
            Self::None => Some(0),
            Self::Budget(budget) => budget.withdraw(now).then_some(0),
            Self::Throttling(throttling) => throttling.admits().then_some(0),
            Self::Quota(quota) => quota.withdraw(code),
        }
    }
}
