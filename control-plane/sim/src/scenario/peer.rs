//! The peers that Damper is compared with: a loop around each call, and one of three caps that others put on it.
//!
//! These are settings only; how they behave is in `peers`. Defaults are those of the originals, so that a scenario
//! that names a cap and no more compares with what most have.

use std::time::Duration;

use damper_core::fault::Bounds;
use damper_core::{CodeSet, Ratio};

/// Attempts of a peer.
pub const ATTEMPTS: Bounds<u32> = Bounds { min: 1, max: 10 };
/// `budget.ttl` of a peer.
pub const TTL: Bounds<Duration> = Bounds { min: Duration::from_secs(1), max: Duration::from_secs(60) };
/// `budget.min_per_sec` of a peer.
pub const MIN_PER_SEC: Bounds<u32> = Bounds { min: 0, max: 100_000 };
/// `budget.retry_percent` of a peer, of which 1 is 100 %.
pub const RETRY_PERCENT: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1), max: Ratio::ONE };
/// `throttling.max_tokens` of a peer, as gRPC has it.
pub const MAX_TOKENS: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// `throttling.token_ratio` of a peer; gRPC heeds no decimals beyond the third.
pub const TOKEN_RATIO: Bounds<Ratio> = Bounds { min: Ratio::from_bp(10), max: Ratio::from_bp(10_000_000) };
/// `quota.tokens`, `quota.cost` and `quota.timeout_cost` of a peer.
pub const TOKENS: Bounds<u32> = Bounds { min: 1, max: 100_000 };

/// What others do: a loop around each call, which knows nothing of flags and deadlines of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Attempts per call, the first included; 1 sends once.
    pub attempts: u32,
    /// The codes that are retried.
    pub codes: CodeSet,
    /// When an attempt is given up. None: never.
    pub per_attempt_timeout: Option<Duration>,
    /// The same for calls to these services, in its place.
    pub callee_timeouts: Vec<(String, Duration)>,
    /// The waits between. None: there are none.
    pub backoff: Option<PeerBackoff>,
    /// A cap on retries per process and route. None: there is none.
    pub cap: Option<PeerCap>,
}

/// Exponential waits with jitter: about `base x 2^(n-1)`, at most `max`, before retry n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBackoff {
    /// What the first wait is about.
    pub base: Duration,
    /// The longest wait.
    pub max: Duration,
    /// What is left to chance.
    pub jitter: PeerJitter,
}

/// What of a wait is left to chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerJitter {
    /// All of it: any wait from 0 on.
    #[default]
    Full,
    /// It is added: any from the wait to twice as much, as tower's `ExponentialBackoff` with jitter 1.
    Added,
}

/// A cap on retries, of one of the kinds that others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCap {
    /// Tower's.
    Budget(PeerBudget),
    /// gRPC's.
    Throttling(PeerThrottling),
    /// That of the AWS SDKs.
    Quota(PeerQuota),
}

/// What tower's `TpsBudget` is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBudget {
    /// How long a success is remembered.
    pub ttl: Duration,
    /// So many retries per second are always there.
    pub min_per_sec: u32,
    /// So many retries per success.
    pub retry_percent: Ratio,
}

/// gRPC's `retryThrottling`: a retry is sent only while there are more than half of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerThrottling {
    /// With so many tokens it begins, and it never has more. Each failure takes one.
    pub max_tokens: u32,
    /// So many a success gives back.
    pub token_ratio: Ratio,
}

/// The retry quota of the AWS SDKs' standard mode: retries are paid for, and successes pay back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerQuota {
    /// With so many tokens it begins, and it never has more.
    pub tokens: u32,
    /// What a retry costs.
    pub cost: u32,
    /// What a retry costs after an attempt that timed out.
    pub timeout_cost: u32,
}

impl Peer {
    /// So many attempts after UNAVAILABLE, at once and without a cap.
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

    /// As it is on a hop to this service.
    pub(crate) fn towards(&self, service: &str) -> Self {
        let own = self.callee_timeouts.iter().find(|(callee, _)| callee == service);
        let timeout = own.map(|(_, timeout)| *timeout).or(self.per_attempt_timeout);
        Self { per_attempt_timeout: timeout, callee_timeouts: Vec::new(), ..self.clone() }
    }
}

impl Default for PeerBackoff {
    /// 25 ms, at most 250 ms, as Damper's.
    fn default() -> Self {
        let (base, max) = (Duration::from_millis(25), Duration::from_millis(250));
        Self { base, max, jitter: PeerJitter::default() }
    }
}

impl Default for PeerBudget {
    /// 10 s, 10 per second, 20 %, as tower's.
    fn default() -> Self {
        Self { ttl: Duration::from_secs(10), min_per_sec: 10, retry_percent: Ratio::from_bp(2_000) }
    }
}

impl Default for PeerThrottling {
    /// 10 tokens and 0.1 of one per success, as in gRPC's own example; it has no default.
    fn default() -> Self {
        Self { max_tokens: 10, token_ratio: Ratio::from_bp(1_000) }
    }
}

impl Default for PeerQuota {
    /// 500 tokens, 5 for a retry and 10 after a timeout, as the SDKs'.
    fn default() -> Self {
        Self { tokens: 500, cost: 5, timeout_cost: 10 }
    }
}
