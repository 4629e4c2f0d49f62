//! Features: capabilities that an SDK needs for a rule.
//!
//! An SDK lists its features when it connects. The control plane derives from each rule the features it
//! needs, and withholds the rule from clients without them, with the name of the feature. Names are only ever
//! added.

use crate::policy::{Backoff, BreakerMode, Growth, Jitter, OverMax, Policy, RetryBreaker, Waits};

/// All of the first release of `damper.v1`: mode, timeout, retry with its first four backoffs, breaker, chain
/// flags.
pub const BASE: &str = "base";
/// `hedge`
pub const HEDGE: &str = "hedge";
/// `budget`
pub const BUDGET: &str = "budget";
/// `stop_when`
pub const STOP_WHEN: &str = "stop_when";
/// `circuit_breaker`
pub const CIRCUIT_BREAKER: &str = "circuit_breaker";
/// `retry_breaker.mode: credit`. A client without it receives the rule in mode ratio.
pub const CREDIT: &str = "credit";
/// `retry.backoff` of the kinds incrementing, fibonacci, custom, sum and by_code; `over_max: stop`; jitter of
/// a random backoff.
pub const BACKOFFS: &str = "backoffs";
/// `hold_unary`
pub const HOLD_UNARY: &str = "hold_unary";
/// `call_id`
pub const CALL_ID: &str = "call_id";
/// `chain.propagate_baggage`
pub const BAGGAGE: &str = "baggage";
/// Guards. A rule that a guard would tighten is withheld from clients without it.
pub const GUARDS: &str = "guards";
/// The kill switch. Clients without it do not apply kills; setting a kill reports how many such clients there
/// are.
pub const KILL_SWITCH: &str = "kill_switch";

/// The features of this engine.
pub const ALL: &[&str] = &[
    BASE,
    HEDGE,
    BUDGET,
    STOP_WHEN,
    CIRCUIT_BREAKER,
    CREDIT,
    BACKOFFS,
    HOLD_UNARY,
    CALL_ID,
    BAGGAGE,
    GUARDS,
    KILL_SWITCH,
];

/// Returns the first feature that the policy needs and `has` does not list.
#[must_use]
pub fn lacking<'a>(policy: &Policy, has: impl Fn(&str) -> bool + 'a) -> Option<&'static str> {
    needed(policy).find(|feature| !has(feature))
}

/// Returns the policy for a client without credit.
#[must_use]
pub fn without_credit(policy: &Policy) -> Policy {
    let retry_breaker =
        policy.retry_breaker.map(|breaker| RetryBreaker { mode: BreakerMode::Ratio, ..breaker });
    Policy { retry_breaker, ..policy.clone() }
}

/// Returns the features that the policy needs. Credit is not one: see [`without_credit`].
pub fn needed(policy: &Policy) -> impl Iterator<Item = &'static str> + use<> {
    let later_backoff = policy.retry.as_ref().is_some_and(|retry| !began_with(&retry.backoff));
    let uses = [
        (true, BASE),
        (policy.hedge.is_some(), HEDGE),
        (policy.budget.is_some(), BUDGET),
        (policy.stop_when.is_some(), STOP_WHEN),
        (policy.circuit_breaker.is_some(), CIRCUIT_BREAKER),
        (later_backoff, BACKOFFS),
        (policy.hold_unary, HOLD_UNARY),
        (policy.call_id, CALL_ID),
        (policy.chain.propagate_baggage, BAGGAGE),
    ];
    uses.into_iter().filter(|(used, _)| *used).map(|(_, feature)| feature)
}

/// Returns true for the backoffs of the first release of `damper.v1`.
fn began_with(backoff: &Backoff) -> bool {
    let Backoff::Always(waits) = backoff else {
        return false;
    };
    match waits {
        Waits::None | Waits::Fixed { .. } => true,
        Waits::Random { jitter, .. } => *jitter == Jitter::None,
        Waits::Exponential { growth: Growth { over_max, .. }, .. } => *over_max == OverMax::Cap,
        Waits::Incrementing { .. } | Waits::Fibonacci { .. } | Waits::Custom { .. } => false,
    }
}
