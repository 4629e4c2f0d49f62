//! What holds a peer's retries back, whichever of the three kinds it is: who is told of what, and who has to be asked.

use damper_core::{Code, Time};

use super::quota::Quota;
use super::throttling::Throttling;
use super::tps::TpsBudget;
use crate::scenario::PeerCap;

/// The cap of one process on one route.
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

    /// A call has succeeded, by a retry of this cost or at once.
    pub(super) fn succeeded(&mut self, paid: Option<u32>, now: Time) {
        match self {
            Self::None => {}
            Self::Budget(budget) => budget.deposit(now),
            Self::Throttling(throttling) => throttling.succeeded(),
            Self::Quota(quota) => quota.succeeded(paid),
        }
    }

    /// An attempt has failed with a code that is retried, be it the last one.
    pub(super) fn failed(&mut self) {
        if let Self::Throttling(throttling) = self {
            throttling.failed();
        }
    }

    /// Pays for a retry after this code, and says what it cost; none: it may not be sent.
    pub(super) fn withdraw(&mut self, code: Code, now: Time) -> Option<u32> {
        match self {
            Self::None => Some(0),
            Self::Budget(budget) => budget.withdraw(now).then_some(0),
            Self::Throttling(throttling) => throttling.admits().then_some(0),
            Self::Quota(quota) => quota.withdraw(code),
        }
    }
}
