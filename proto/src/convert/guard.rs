//! Ceilings of a callee's owner, as written by operators and as sent to services.
//!
//! Absent values are not limited and stay absent: a default would be an unwanted limit. Only in a ceiling may
//! a list of codes be empty: then none may be retried.

use damper_core::policy::{BREAKER_RATIO, TIMEOUT};
use damper_core::{Ceiling, Faults, Guard, Pattern, RepeatLimit, repeat_limit};

use super::policy::mode_or;
use super::{add_new, amount, code, key, required, within};
use crate::v1;

/// Reads a guard of an operator. The server sets time and author of its last change.
///
/// # Errors
/// All faults by path: `key.callee_method`, `ceiling.max_attempts`.
pub fn guard(wire: &v1::Guard) -> Result<Guard, Faults> {
    let v1::Guard { key, ceiling, owner, revision, updated_at: _, updated_by: _ } = wire;
    bind(key.as_ref(), ceiling.as_ref(), owner, *revision)
}

/// Reads a guard that was sent to this process, without its owner.
///
/// # Errors
/// All faults by path.
pub fn distributed_guard(wire: &v1::DistributedGuard) -> Result<Guard, Faults> {
    let v1::DistributedGuard { key, revision, ceiling } = wire;
    bind(key.as_ref(), ceiling.as_ref(), "", *revision)
}

/// Reads ceilings for the routes of a pattern and checks their ranges in the engine.
///
/// # Errors
/// All faults by path below the ceiling.
pub fn ceiling(wire: &v1::Ceiling, pattern: &Pattern) -> Result<Ceiling, Faults> {
    let mut faults = Faults::none();
    let ceiling = read(wire, &mut faults);
    let mut found = Faults::none();
    ceiling.check(pattern, &mut found);
    add_new(&found, &mut faults);
    faults.or(ceiling)
}

fn bind(
    wire: Option<&v1::Pattern>,
    wire_part: Option<&v1::Ceiling>,
    owner: &str,
    revision: u64,
) -> Result<Guard, Faults> {
    let mut faults = Faults::none();
    let key = key(wire, &mut faults);
    let ceiling = required("ceiling", wire_part, |wire, faults| Some(read(wire, faults)), &mut faults);
    // The engine checks the whole; any ceiling is valid at these routes.
    let pattern = key.or_else(|| Pattern::parse("*", "*", "*", "*").ok());
    let Some(pattern) = pattern else { return Err(faults) };
    match Guard::new(pattern, ceiling.unwrap_or_default(), owner.to_owned(), revision) {
        Ok(guard) => faults.or(guard),
        Err(found) => {
            add_new(&found, &mut faults);
            Err(faults)
        }
    }
}

/// Reads ceilings, with stand-ins for rejected values.
fn read(wire: &v1::Ceiling, faults: &mut Faults) -> Ceiling {
    let v1::Ceiling {
        max_attempts,
        hedge,
        codes,
        max_retry_breaker_ratio: ratio,
        min_per_attempt_timeout: timeout,
        repeat_limit: limit,
    } = wire;
    Ceiling {
        max_attempts: *max_attempts,
        forbid_hedge: forbids(*hedge, faults),
        codes: codes.as_ref().and_then(|codes| within("codes", faults, |faults| code::codes(codes, faults))),
        max_retry_breaker_ratio: amount::ratio("max_retry_breaker_ratio", *ratio, BREAKER_RATIO, faults),
        min_per_attempt_timeout: amount::duration(
            "min_per_attempt_timeout",
            timeout.as_ref(),
            TIMEOUT,
            faults,
        ),
        repeat_limit: limit
            .as_ref()
            .map(|limit| within("repeat_limit", faults, |faults| repeat_limit(limit, faults))),
    }
}

fn forbids(hedge: i32, faults: &mut Faults) -> bool {
    match v1::HedgeCeiling::try_from(hedge) {
        Ok(v1::HedgeCeiling::Unspecified | v1::HedgeCeiling::Allow) => false,
        Ok(v1::HedgeCeiling::Forbid) => true,
        Err(_) => {
            faults.add("hedge", format!("must be allow or forbid, not {hedge}"));
            false
        }
    }
}

fn repeat_limit(wire: &v1::RepeatLimit, faults: &mut Faults) -> RepeatLimit {
    let v1::RepeatLimit { mode, ratio, min } = wire;
    let default = RepeatLimit::default();
    RepeatLimit {
        mode: mode_or(default.mode, *mode, faults),
        ratio: amount::ratio("ratio", *ratio, repeat_limit::RATIO, faults).unwrap_or(default.ratio),
        min: min.unwrap_or(default.min),
    }
}

impl From<&Guard> for v1::Guard {
    /// Omits fields set by the server: time and author of the last change.
    fn from(guard: &Guard) -> Self {
        Self {
            key: Some(guard.pattern().into()),
            ceiling: Some(guard.ceiling().into()),
            owner: guard.owner().to_owned(),
            revision: guard.revision(),
            updated_at: None,
            updated_by: String::new(),
        }
    }
}

impl From<&Guard> for v1::DistributedGuard {
    fn from(guard: &Guard) -> Self {
        Self {
            key: Some(guard.pattern().into()),
            revision: guard.revision(),
            ceiling: Some(guard.ceiling().into()),
        }
    }
}

impl From<&Ceiling> for v1::Ceiling {
    fn from(ceiling: &Ceiling) -> Self {
        let Ceiling {
            max_attempts,
            forbid_hedge,
            codes,
            max_retry_breaker_ratio,
            min_per_attempt_timeout,
            repeat_limit,
        } = *ceiling;
        let hedge = if forbid_hedge { v1::HedgeCeiling::Forbid } else { v1::HedgeCeiling::Unspecified };
        Self {
            max_attempts,
            hedge: hedge.into(),
            codes: codes.map(Into::into),
            max_retry_breaker_ratio: max_retry_breaker_ratio.map(amount::ratio_to_wire),
            min_per_attempt_timeout: min_per_attempt_timeout.map(amount::to_wire),
            repeat_limit: repeat_limit.as_ref().map(Into::into),
        }
    }
}

impl From<&RepeatLimit> for v1::RepeatLimit {
    fn from(limit: &RepeatLimit) -> Self {
        let RepeatLimit { mode, ratio, min } = *limit;
        Self { mode: v1::Mode::from(mode).into(), ratio: Some(amount::ratio_to_wire(ratio)), min: Some(min) }
    }
}
