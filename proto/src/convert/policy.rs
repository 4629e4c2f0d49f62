//! Policies and modes.

use damper_core::policy::{DEFAULT_REPLAY_LIMIT, TIMEOUT};
use damper_core::{Chain, Faults, Mode, Policy, RetryBreaker};

use super::{add_new, amount, breaker, gates, hedge, retry::retry, within};
use crate::v1;

/// Reads a policy and checks its ranges in the engine.
///
/// # Errors
/// All faults by path below the policy.
pub fn policy(wire: &v1::Policy) -> Result<Policy, Faults> {
    let mut faults = Faults::none();
    let policy = read(wire, &mut faults);
    faults.or(policy)
}

/// Reads a policy, with stand-ins for rejected values.
pub(super) fn read(wire: &v1::Policy, faults: &mut Faults) -> Policy {
    let v1::Policy {
        mode: said,
        timeout,
        retry: retries,
        retry_breaker,
        chain,
        replay_limit_bytes,
        hedge: hedges,
        budget: cap,
        stop_when: stops,
        circuit_breaker: circuit,
        hold_unary,
        call_id,
    } = wire;
    // A missing mode was reported; `off` stands in while the rest is checked.
    let mode = mode(*said, faults).unwrap_or(Mode::Off);
    let timeout = amount::duration("timeout", timeout.as_ref(), TIMEOUT, faults);
    let retry = part("retry", retries.as_ref(), retry, faults);
    let breaker = part("retry_breaker", retry_breaker.as_ref(), breaker::retry_breaker, faults);
    let (enabled, breaker) = breaker.unwrap_or((true, RetryBreaker::default()));
    let mut policy = Policy {
        mode,
        timeout,
        retry,
        hedge: part("hedge", hedges.as_ref(), hedge::hedge, faults),
        retry_breaker: Some(breaker),
        budget: part("budget", cap.as_ref(), gates::budget, faults),
        stop_when: part("stop_when", stops.as_ref(), gates::stop_when, faults),
        circuit_breaker: part("circuit_breaker", circuit.as_ref(), gates::circuit_breaker, faults),
        chain: chain.as_ref().map_or_else(Chain::default, Chain::from),
        replay_limit: replay_limit_bytes.unwrap_or(DEFAULT_REPLAY_LIMIT),
        hold_unary: *hold_unary,
        call_id: *call_id,
    };
    let mut ranges = Faults::none();
    policy.check(&mut ranges);
    add_new(&ranges, faults);
    policy.retry_breaker = policy.retry_breaker.filter(|_| enabled);
    policy
}

/// Reads an optional part.
pub(super) fn part<W, T>(
    path: &str,
    wire: Option<&W>,
    read: impl FnOnce(&W, &mut Faults) -> T,
    faults: &mut Faults,
) -> Option<T> {
    wire.map(|wire| within(path, faults, |faults| read(wire, faults)))
}

/// Reads a required mode; `None` was reported.
pub(super) fn mode(number: i32, faults: &mut Faults) -> Option<Mode> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Off) => return Some(Mode::Off),
        Ok(v1::Mode::Observe) => return Some(Mode::Observe),
        Ok(v1::Mode::Enforce) => return Some(Mode::Enforce),
        Ok(v1::Mode::Unspecified) => faults.add("mode", "required (off, observe or enforce)"),
        Err(_) => faults.add("mode", format!("must be off, observe or enforce, not {number}")),
    }
    None
}

/// Reads a mode with a default.
pub(super) fn mode_or(default: Mode, number: i32, faults: &mut Faults) -> Mode {
    if number == v1::Mode::Unspecified as i32 { default } else { mode(number, faults).unwrap_or(default) }
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
        let v1::Chain { ignore_retry_flag, ignore_no_more_retry, propagate_baggage } = *wire;
        Self { ignore_retry_flag, ignore_no_more_retry, propagate_baggage }
    }
}

impl From<&Chain> for v1::Chain {
    fn from(chain: &Chain) -> Self {
        let Chain { ignore_retry_flag, ignore_no_more_retry, propagate_baggage } = *chain;
        Self { ignore_retry_flag, ignore_no_more_retry, propagate_baggage }
    }
}

impl From<&Policy> for v1::Policy {
    fn from(policy: &Policy) -> Self {
        let Policy {
            mode,
            timeout,
            retry,
            hedge,
            retry_breaker,
            budget,
            stop_when,
            circuit_breaker,
            chain,
            replay_limit,
            hold_unary,
            call_id,
        } = policy;
        Self {
            mode: v1::Mode::from(*mode).into(),
            timeout: timeout.map(amount::to_wire),
            retry: retry.as_ref().map(Into::into),
            retry_breaker: Some(retry_breaker.as_ref().map_or_else(breaker::off, Into::into)),
            chain: Some(chain.into()),
            replay_limit_bytes: Some(*replay_limit),
            hedge: hedge.as_ref().map(Into::into),
            budget: budget.as_ref().map(Into::into),
            stop_when: stop_when.as_ref().map(Into::into),
            circuit_breaker: circuit_breaker.as_ref().map(Into::into),
            hold_unary: *hold_unary,
            call_id: *call_id,
        }
    }
}
