//! Waits before retries and their random part.

use std::time::Duration;

use damper_core::policy::{JITTER_SHARE, MULTIPLIER, WAIT};
use damper_core::{Backoff, Faults, Jitter, Ratio};

use super::{amount, within};
use crate::v1::{self, backoff::Kind};

/// What stands in for a setting that was refused, so that the rest can be checked.
const REFUSED: Duration = WAIT.min;

/// Reads a backoff; a stand-in if it was refused.
pub(super) fn backoff(wire: &v1::Backoff, faults: &mut Faults) -> Backoff {
    let v1::Backoff { kind } = wire;
    match kind {
        None => {
            faults.add("", "must be said: none, fixed, random or exponential");
            Backoff::None
        }
        Some(Kind::None(v1::NoBackoff {})) => Backoff::None,
        Some(Kind::Fixed(wire)) => within("fixed", faults, |faults| fixed(wire, faults)),
        Some(Kind::Random(wire)) => within("random", faults, |faults| random(wire, faults)),
        Some(Kind::Exponential(wire)) => within("exponential", faults, |faults| exponential(wire, faults)),
    }
}

fn fixed(wire: &v1::FixedBackoff, faults: &mut Faults) -> Backoff {
    let v1::FixedBackoff { delay, jitter: kind, jitter_share } = wire;
    Backoff::Fixed {
        delay: amount::required_duration("delay", delay.as_ref(), WAIT, faults).unwrap_or(REFUSED),
        jitter: jitter(*kind, *jitter_share, Jitter::None, faults),
    }
}

fn random(wire: &v1::RandomBackoff, faults: &mut Faults) -> Backoff {
    let v1::RandomBackoff { min, max } = wire;
    let min = amount::required_duration("min", min.as_ref(), WAIT, faults).unwrap_or(REFUSED);
    let max = amount::required_duration("max", max.as_ref(), WAIT, faults).unwrap_or(min);
    Backoff::Random { min, max }
}

fn exponential(wire: &v1::ExponentialBackoff, faults: &mut Faults) -> Backoff {
    let v1::ExponentialBackoff { base, multiplier, max, jitter: kind, jitter_share } = wire;
    let said_max = max.is_some();
    let base = match base {
        None => Backoff::DEFAULT_BASE,
        Some(base) => amount::duration("base", Some(base), WAIT, faults).unwrap_or(REFUSED),
    };
    let multiplier =
        amount::ratio("multiplier", *multiplier, MULTIPLIER, faults).unwrap_or(Backoff::DEFAULT_MULTIPLIER);
    let max = amount::duration("max", max.as_ref(), WAIT, faults).unwrap_or(base.max(Backoff::DEFAULT_MAX));
    let jitter = jitter(*kind, *jitter_share, Jitter::Full, faults);
    if !said_max && base > WAIT.max {
        // The ceiling follows the base; only the base was written, so only the base is reported.
        WAIT.check("base", base, faults);
        return Backoff::Exponential { base: REFUSED, multiplier, max: Backoff::DEFAULT_MAX, jitter };
    }
    Backoff::Exponential { base, multiplier, max, jitter }
}

fn jitter(kind: i32, share: Option<f64>, unsaid: Jitter, faults: &mut Faults) -> Jitter {
    let kind = v1::Jitter::try_from(kind).map_err(|_| {
        faults.add("jitter", format!("{kind} is not known: none, full, equal, plus_minus or decorrelated"));
    });
    let said = share.is_some();
    let share = amount::ratio("jitter_share", share, JITTER_SHARE, faults);
    let Ok(kind) = kind else { return unsaid };
    if kind == v1::Jitter::PlusMinus {
        if !said {
            faults.add("jitter_share", format!("must be said with jitter plus_minus, in {JITTER_SHARE}"));
        }
        return Jitter::PlusMinus(share.unwrap_or(Ratio::ONE));
    }
    if said {
        faults.add("jitter_share", "goes with jitter plus_minus only");
    }
    match kind {
        v1::Jitter::Unspecified | v1::Jitter::PlusMinus => unsaid,
        v1::Jitter::None => Jitter::None,
        v1::Jitter::Full => Jitter::Full,
        v1::Jitter::Equal => Jitter::Equal,
        v1::Jitter::Decorrelated => Jitter::Decorrelated,
    }
}

impl From<&Backoff> for v1::Backoff {
    fn from(backoff: &Backoff) -> Self {
        let kind = match *backoff {
            Backoff::None => Kind::None(v1::NoBackoff {}),
            Backoff::Fixed { delay, jitter } => {
                let (jitter, jitter_share) = jitter_to_wire(jitter);
                Kind::Fixed(v1::FixedBackoff { delay: Some(amount::to_wire(delay)), jitter, jitter_share })
            }
            Backoff::Random { min, max } => Kind::Random(v1::RandomBackoff {
                min: Some(amount::to_wire(min)),
                max: Some(amount::to_wire(max)),
            }),
            Backoff::Exponential { base, multiplier, max, jitter } => {
                let (jitter, jitter_share) = jitter_to_wire(jitter);
                Kind::Exponential(v1::ExponentialBackoff {
                    base: Some(amount::to_wire(base)),
                    multiplier: Some(amount::ratio_to_wire(multiplier)),
                    max: Some(amount::to_wire(max)),
                    jitter,
                    jitter_share,
                })
            }
        };
        Self { kind: Some(kind) }
    }
}

fn jitter_to_wire(jitter: Jitter) -> (i32, Option<f64>) {
    let (kind, share) = match jitter {
        Jitter::None => (v1::Jitter::None, None),
        Jitter::Full => (v1::Jitter::Full, None),
        Jitter::Equal => (v1::Jitter::Equal, None),
        Jitter::PlusMinus(share) => (v1::Jitter::PlusMinus, Some(amount::ratio_to_wire(share))),
        Jitter::Decorrelated => (v1::Jitter::Decorrelated, None),
    };
    (kind.into(), share)
}
