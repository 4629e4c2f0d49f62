//! Settings of peers: a retry loop around each call, and one of three caps.
//!
//! `peers` implements them. Defaults are those of the originals, so that a scenario that only names a cap
//! compares with common use.

use std::time::Duration;

use damper_core::fault::Bounds;
use damper_core::{CodeSet, Ratio};
use damper_document::Value;
use serde::Deserialize;

use crate::values::{Plain, one_of, plain};

/// Attempts of a peer.
pub const ATTEMPTS: Bounds<u32> = Bounds { min: 1, max: 10 };
/// `budget.ttl` of a peer.
pub const TTL: Bounds<Duration> = Bounds { min: Duration::from_secs(1), max: Duration::from_secs(60) };
/// `budget.min_per_sec` of a peer.
pub const MIN_PER_SEC: Bounds<u32> = Bounds { min: 0, max: 100_000 };
/// `budget.retry_percent` of a peer, where 1 is 100 %.
pub const RETRY_PERCENT: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1), max: Ratio::ONE };
/// `throttling.max_tokens` of a peer, as in gRPC.
pub const MAX_TOKENS: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// `throttling.token_ratio` of a peer; gRPC ignores decimals beyond the third.
pub const TOKEN_RATIO: Bounds<Ratio> = Bounds { min: Ratio::from_bp(10), max: Ratio::from_bp(10_000_000) };
/// `quota.tokens`, `quota.cost` and `quota.timeout_cost` of a peer.
pub const TOKENS: Bounds<u32> = Bounds { min: 1, max: 100_000 };

/// A retry loop of another library, without flags and deadlines of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Attempts per call, including the first; 1: no retries.
    pub attempts: u32,
    /// Retryable codes.
    pub codes: CodeSet,
    /// Timeout of an attempt. `None`: no timeout.
    pub per_attempt_timeout: Option<Duration>,
    /// Timeouts of an attempt for these services.
    pub callee_timeouts: Vec<(String, Duration)>,
    /// Waits before retries. `None`: no waits.
    pub backoff: Option<PeerBackoff>,
    /// Cap of retries per process and route. `None`: no cap.
    pub cap: Option<PeerCap>,
}

/// Exponential waits with jitter: about `base x 2^(n-1)`, at most `max`, before retry n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerBackoff {
    /// First wait.
    #[serde(deserialize_with = "plain")]
    pub base: Duration,
    /// Longest wait.
    #[serde(deserialize_with = "plain")]
    pub max: Duration,
    /// Jitter.
    #[serde(deserialize_with = "plain")]
    pub jitter: PeerJitter,
}

/// Random part of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerJitter {
    /// Any wait from 0 on.
    #[default]
    Full,
    /// Any wait between the wait and twice as much, as tower's `ExponentialBackoff` with jitter 1.
    Added,
}

/// Cap of retries, of one of three kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCap {
    /// Tower.
    Budget(PeerBudget),
    /// gRPC.
    Throttling(PeerThrottling),
    /// AWS SDKs.
    Quota(PeerQuota),
}

/// Settings of tower's `TpsBudget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerBudget {
    /// Lifetime of a success.
    #[serde(deserialize_with = "plain")]
    pub ttl: Duration,
    /// Retries per second that are always allowed.
    pub min_per_sec: u32,
    /// Retries per success.
    #[serde(deserialize_with = "plain")]
    pub retry_percent: Ratio,
}

/// gRPC's `retryThrottling`: retries are allowed above half of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerThrottling {
    /// Initial and largest number of tokens. Each failure takes one.
    pub max_tokens: u32,
    /// Tokens returned by a success.
    #[serde(deserialize_with = "plain")]
    pub token_ratio: Ratio,
}

/// Retry quota of the AWS SDKs' standard mode: retries cost tokens, successes return them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerQuota {
    /// Initial and largest number of tokens.
    pub tokens: u32,
    /// Cost of a retry.
    pub cost: u32,
    /// Cost of a retry after a timeout.
    pub timeout_cost: u32,
}

impl Peer {
    /// Returns a peer with this number of attempts after UNAVAILABLE, without waits and cap.
    #[must_use]
    pub fn naive(attempts: u32) -> Self {
        let codes = damper_core::policy::RETRYABLE;
        Self {
            attempts,
            codes,
            per_attempt_timeout: None,
            callee_timeouts: Vec::new(),
            backoff: None,
            cap: None,
        }
    }

    /// Returns the peer on a hop to this service.
    pub(crate) fn towards(&self, service: &str) -> Self {
        let own = self.callee_timeouts.iter().find(|(callee, _)| callee == service);
        let timeout = own.map(|(_, timeout)| *timeout).or(self.per_attempt_timeout);
        Self { per_attempt_timeout: timeout, callee_timeouts: Vec::new(), ..self.clone() }
    }
}

impl Default for PeerBackoff {
    /// 25 ms, at most 250 ms, as in Damper.
    fn default() -> Self {
        let (base, max) = (Duration::from_millis(25), Duration::from_millis(250));
        Self { base, max, jitter: PeerJitter::default() }
    }
}

impl Default for PeerBudget {
    /// 10 s, 10 per second, 20 %, as in tower.
    fn default() -> Self {
        Self { ttl: Duration::from_secs(10), min_per_sec: 10, retry_percent: Ratio::from_bp(2_000) }
    }
}

impl Default for PeerThrottling {
    /// 10 tokens and 0.1 per success, as in gRPC's example; gRPC has no default.
    fn default() -> Self {
        Self { max_tokens: 10, token_ratio: Ratio::from_bp(1_000) }
    }
}

impl Default for PeerQuota {
    /// 500 tokens, 5 for a retry and 10 after a timeout, as in the SDKs.
    fn default() -> Self {
        Self { tokens: 500, cost: 5, timeout_cost: 10 }
    }
}

impl Plain for PeerJitter {
    fn read(value: &Value) -> Result<Self, String> {
        one_of(value, &[("full", Self::Full), ("added", Self::Added)])
    }
}
