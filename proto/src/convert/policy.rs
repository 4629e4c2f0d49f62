//! What a rule says: the policy and its mode.

use damper_core::policy::{DEFAULT_REPLAY_LIMIT, TIMEOUT};
use damper_core::{Chain, Faults, Mode, Policy, RetryBreaker};

use super::{amount, breaker, is_at_or_below, retry::retry, within};
use crate::v1;

/// Reads a policy and lets the engine check its ranges.
///
/// # Errors
/// Everything that is wrong with it, by its path below the policy.
pub fn policy(wire: &v1::Policy) -> Result<Policy, Faults> {
    let mut faults = Faults::none();
    let v1::Policy { mode: said, timeout, retry: retries, retry_breaker, chain, replay_limit_bytes } = wire;
    // A policy without a known mode is reported; `off` only stands in while the rest is checked.
    let mode = mode(*said, &mut faults).unwrap_or(Mode::Off);
    let timeout = amount::duration("timeout", timeout.as_ref(), TIMEOUT, &mut faults);
    let retry = retries.as_ref().map(|wire| within("retry", &mut faults, |faults| retry(wire, faults)));
    let (enabled, breaker) = match retry_breaker {
        None => (true, RetryBreaker::default()),
        Some(wire) => within("retry_breaker", &mut faults, |faults| breaker::retry_breaker(wire, faults)),
    };
    let mut policy = Policy {
        mode,
        timeout,
        retry,
        retry_breaker: Some(breaker),
        chain: chain.as_ref().map_or_else(Chain::default, Chain::from),
        replay_limit: replay_limit_bytes.unwrap_or(DEFAULT_REPLAY_LIMIT),
    };
    add_ranges(&policy, &mut faults);
    policy.retry_breaker = policy.retry_breaker.filter(|_| enabled);
    faults.or(policy)
}

/// Adds what the engine finds out of range. A field that was refused already holds a stand-in and is left out.
fn add_ranges(policy: &Policy, faults: &mut Faults) {
    let mut ranges = Faults::none();
    policy.check(&mut ranges);
    for fault in ranges.iter() {
        let refused = faults.iter().any(|known| is_at_or_below(&known.path, &fault.path));
        if !refused {
            faults.add(&fault.path, &fault.problem);
        }
    }
}

fn mode(number: i32, faults: &mut Faults) -> Option<Mode> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Off) => return Some(Mode::Off),
        Ok(v1::Mode::Observe) => return Some(Mode::Observe),
        Ok(v1::Mode::Enforce) => return Some(Mode::Enforce),
        Ok(v1::Mode::Unspecified) => faults.add("mode", "must be said: off, observe or enforce"),
        Err(_) => faults.add("mode", format!("{number} is not known: off, observe or enforce")),
    }
    None
}

impl From<Mode> for v1::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Observe => Self::Observe,
            Mode::Enforce => Self::Enforce,
        }
    }
}

impl From<&v1::Chain> for Chain {
    fn from(wire: &v1::Chain) -> Self {
        let v1::Chain { ignore_retry_flag, ignore_no_more_retry } = *wire;
        Self { ignore_retry_flag, ignore_no_more_retry }
    }
}

impl From<&Chain> for v1::Chain {
    fn from(chain: &Chain) -> Self {
        let Chain { ignore_retry_flag, ignore_no_more_retry } = *chain;
        Self { ignore_retry_flag, ignore_no_more_retry }
    }
}

impl From<&Policy> for v1::Policy {
    fn from(policy: &Policy) -> Self {
        let Policy { mode, timeout, retry, retry_breaker, chain, replay_limit } = policy;
        Self {
            mode: v1::Mode::from(*mode).into(),
            timeout: timeout.map(amount::to_wire),
            retry: retry.as_ref().map(Into::into),
            retry_breaker: Some(retry_breaker.as_ref().map_or_else(breaker::off, Into::into)),
            chain: Some(chain.into()),
            replay_limit_bytes: Some(*replay_limit),
        }
    }
}
