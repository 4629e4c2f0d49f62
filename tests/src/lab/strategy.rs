//! The ways of repeating calls that are compared, and what each needs: a rule for Damper or a policy for tower.
//!
//! All repeat alike where they repeat: three attempts, UNAVAILABLE and DEADLINE_EXCEEDED, the same attempt timeouts,
//! and the same waits where there are any. They differ only in what holds repeats back. Damper's steps build on each
//! other from `damper-breaker` to `damper-deadline`; those after it add one thing each to `damper-deadline`.
//!
//! A strategy more is a variant here; what it needs in the process is in `stub`, for one in Go in `tests/lab-go`.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Attempts of one call, the first included: r.
pub const ATTEMPTS: u32 = 3;
/// The first wait and the longest.
pub(super) const WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// The share of repeats that budgets allow, and how many more per second.
pub(super) const BUDGET: (f32, u32) = (0.2, 1);

/// A way of repeating calls, the same at every layer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Nobody repeats.
    None,
    /// Every layer repeats at once.
    Naive,
    /// Every layer repeats after exponential waits with jitter.
    Backoff,
    /// The same under `tower::retry`'s `TpsBudget`.
    TowerBudget,
    /// Damper's retry breaker, which pays for retries by credit; both chain flags ignored.
    DamperBreaker,
    /// And the no-more-retry flag.
    DamperUp,
    /// And the retry flag: Damper with its defaults.
    Damper,
    /// And a deadline for the whole call.
    DamperDeadline,
    /// And hedges on the last hop.
    DamperHedge,
    /// Damper with its defaults, but for a retry breaker that goes by the ratio.
    DamperRatio,
    /// And a repeat limit enforced at every callee.
    DamperLimit,
    /// Damper with its defaults over balanced channels, in place of tonic's.
    DamperBalanced,
    /// grpc-go's own retries under `retryThrottling`, with the 10 tokens of gRPC's example.
    GrpcThrottling,
    /// The retry quota of the AWS SDK for Go, as it is by default: 500 tokens, of which a retry costs 14.
    AwsQuota,
    /// Kitex's failure retryer with its default circuit breaker, which stops retries from 10 % failures on.
    Kitex,
    /// failsafe-go's retries under its default budget.
    FailsafeGo,
}

/// What rules say of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// One attempt on the last hop; those above have time for all attempts below them.
    pub attempt: Duration,
    /// A tenth of the breaker's window.
    pub bucket: Duration,
    /// The whole call, where there is a deadline.
    pub deadline: Duration,
    /// When a hedge is sent, where there are hedges.
    pub hedge: Duration,
}

impl Times {
    /// The breaker's window.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.bucket * 10
    }

    /// How long an attempt may take that layer `caller` of so many sends; the top is layer 1.
    #[must_use]
    pub fn attempt_of(&self, caller: usize, layers: usize) -> Duration {
        // Room for the longest waits that three attempts make, and for a busy machine.
        const MARGIN: Duration = Duration::from_millis(80);
        (caller + 1..layers).fold(self.attempt, |below, _| below * ATTEMPTS + MARGIN)
    }
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::None,
        Self::Naive,
        Self::Backoff,
        Self::TowerBudget,
        Self::DamperBreaker,
        Self::DamperUp,
        Self::Damper,
        Self::DamperDeadline,
        Self::DamperHedge,
        Self::DamperRatio,
        Self::DamperLimit,
        Self::DamperBalanced,
        Self::GrpcThrottling,
        Self::AwsQuota,
        Self::Kitex,
        Self::FailsafeGo,
    ];

    /// Its name in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Naive => "naive",
            Self::Backoff => "backoff",
            Self::TowerBudget => "tower-budget",
            Self::DamperBreaker => "damper-breaker",
            Self::DamperUp => "damper-up",
            Self::Damper => "damper",
            Self::DamperDeadline => "damper-deadline",
            Self::DamperHedge => "damper-hedge",
            Self::DamperRatio => "damper-ratio",
            Self::DamperLimit => "damper-limit",
            Self::DamperBalanced => "damper-balanced",
            Self::GrpcThrottling => "grpc-throttling",
            Self::AwsQuota => "aws-quota",
            Self::Kitex => "kitex",
            Self::FailsafeGo => "failsafe-go",
        }
    }

    /// Whether Damper's layers are in the services.
    #[must_use]
    pub fn is_damper(self) -> bool {
        !self.is_go() && !matches!(self, Self::None | Self::Naive | Self::Backoff | Self::TowerBudget)
    }

    /// Whether it is a library of Go, for callers of a fleet alone: no layer of a chain has it.
    #[must_use]
    pub fn is_go(self) -> bool {
        matches!(self, Self::GrpcThrottling | Self::AwsQuota | Self::Kitex | Self::FailsafeGo)
    }

    /// Whether the simulator has it too.
    #[must_use]
    pub fn is_simulated(self) -> bool {
        !matches!(self, Self::Kitex | Self::FailsafeGo)
    }

    /// Whether the whole chain is guarded, so that the targets for chains bind it.
    #[must_use]
    pub fn guards_the_chain(self) -> bool {
        self.is_damper() && !matches!(self, Self::DamperBreaker | Self::DamperUp)
    }

    fn has_deadline(self) -> bool {
        matches!(self, Self::DamperDeadline | Self::DamperHedge | Self::DamperLimit)
    }

    /// The manifest for a chain of so many layers.
    #[must_use]
    pub fn manifest(self, layers: usize, times: &Times) -> String {
        let rules = (1..layers).map(|caller| self.rule(caller, layers, times));
        let mut documents: Vec<String> = rules.collect();
        if self == Self::DamperLimit {
            documents.push(GUARD.to_owned());
        }
        documents.join("---\n")
    }

    fn rule(self, caller: usize, layers: usize, times: &Times) -> String {
        let us = |duration: Duration| format!("{}us", duration.as_micros());
        let mut rule = format!(
            "kind: Rule\nkey: {{ caller_service: {}, caller_cluster: '*', callee_service: {}, callee_method: '*' }}\npolicy:\n  mode: enforce\n",
            service(caller),
            service(caller + 1),
        );
        let _ = writeln!(
            rule,
            "  retry: {{ max_attempts: {ATTEMPTS}, per_attempt_timeout: {}, codes: {{ allow: [UNAVAILABLE, DEADLINE_EXCEEDED] }}, \
             backoff: {{ exponential: {{ base: {}, max: {} }} }} }}",
            us(times.attempt_of(caller, layers)),
            us(WAIT.0),
            us(WAIT.1),
        );
        let mode = if self == Self::DamperRatio { "ratio" } else { "credit" };
        let _ = writeln!(rule, "  retry_breaker: {{ mode: {mode}, bucket_length: {} }}", us(times.bucket));
        let ignored = match self {
            Self::DamperBreaker => "ignore_retry_flag: true, ignore_no_more_retry: true",
            Self::DamperUp => "ignore_retry_flag: true",
            _ => "",
        };
        let _ = writeln!(rule, "  chain: {{ {ignored} }}");
        if self.has_deadline() {
            let _ = writeln!(rule, "  timeout: {}", us(times.deadline));
        }
        // On the hop where it is slow, as somebody would write it who knows where that is.
        if self == Self::DamperHedge && caller + 1 == layers {
            let _ = writeln!(rule, "  hedge: {{ delay: {{ fixed: {} }} }}", us(times.hedge));
        }
        rule
    }
}

/// The name of a layer's service; the top is layer 1.
pub(super) fn service(layer: usize) -> String {
    format!("layer-{layer}")
}

const GUARD: &str = "kind: Guard
key: { caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }
ceiling: { repeat_limit: { mode: enforce } }
";

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|strategy| strategy.name() == text);
        known.ok_or_else(|| format!("there is no strategy `{text}`"))
    }
}

#[cfg(test)]
mod tests {
    use damper_proto::manifest;

    use super::*;

    #[test]
    fn every_manifest_is_one_that_the_control_plane_accepts() {
        let ms = Duration::from_millis;
        let times = Times { attempt: ms(80), bucket: ms(200), deadline: ms(1000), hedge: ms(15) };
        for strategy in Strategy::ALL {
            for layers in 2..=5 {
                let documents = manifest::parse(&strategy.manifest(layers, &times)).expect("a manifest");
                let checked = manifest::check(&documents).expect("good rules");
                assert_eq!(checked.rules.len(), layers - 1, "{strategy}");
            }
        }
    }

    #[test]
    fn an_attempt_has_time_for_every_attempt_below_it() {
        let ms = Duration::from_millis;
        let times = Times { attempt: ms(80), bucket: ms(200), deadline: ms(1000), hedge: ms(15) };
        let all: Vec<_> = (1..4).map(|caller| times.attempt_of(caller, 4)).collect();
        assert_eq!(all, [ms(1040), ms(320), ms(80)]);
    }
}
