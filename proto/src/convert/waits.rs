//! A sequence of waits before retries, and their jitter.
//!
//! A first wait out of range is rejected here, with a stand-in, so that a maximum compared with it is not a
//! second fault.

use std::time::Duration;

use damper_core::policy::{JITTER_SHARE, MULTIPLIER, STEP, WAIT};
use damper_core::{BackoffStep, Faults, Growth, Jitter, OverMax, Ratio, Waits};

use super::backoff::entries;
use super::{amount, within};
use crate::v1::{self, backoff::Kind};

/// Stand-in for a rejected setting, so that the rest can be checked.
const REFUSED: Duration = WAIT.min;
/// Kinds of a backoff that are one sequence.
const KINDS: &str = "none, fixed, random, incrementing, exponential, fibonacci or custom";

/// Reads a sequence of waits within `outer`; returns a stand-in if it was rejected.
pub(super) fn waits(wire: &v1::Backoff, outer: &str, faults: &mut Faults) -> Waits {
    let v1::Backoff { kind } = wire;
    let nested = match kind {
        None => {
            faults.add("", format!("required ({KINDS})"));
            return Waits::None;
        }
        Some(Kind::None(v1::NoBackoff {})) => return Waits::None,
        Some(Kind::Fixed(wire)) => return within("fixed", faults, |faults| fixed(wire, faults)),
        Some(Kind::Random(wire)) => return within("random", faults, |faults| random(wire, faults)),
        Some(Kind::Incrementing(wire)) => {
            return within("incrementing", faults, |faults| incrementing(wire, faults));
        }
        Some(Kind::Exponential(wire)) => {
            return within("exponential", faults, |faults| exponential(wire, faults));
        }
        Some(Kind::Fibonacci(wire)) => return within("fibonacci", faults, |faults| fibonacci(wire, faults)),
        Some(Kind::Custom(wire)) => return within("custom", faults, |faults| custom(wire, faults)),
        Some(Kind::Sum(_)) => "a sum",
        Some(Kind::ByCode(_)) => "by_code",
    };
    faults.add("", format!("must be {KINDS}, not {nested} within {outer}"));
    Waits::None
}

fn fixed(wire: &v1::FixedBackoff, faults: &mut Faults) -> Waits {
    let v1::FixedBackoff { delay, jitter: kind, jitter_share } = wire;
    Waits::Fixed {
        delay: first("delay", delay.as_ref(), faults),
        jitter: jitter(*kind, *jitter_share, Jitter::None, faults),
    }
}

fn random(wire: &v1::RandomBackoff, faults: &mut Faults) -> Waits {
    let v1::RandomBackoff { min, max, jitter: kind, jitter_share } = wire;
    let min = first("min", min.as_ref(), faults);
    let max = amount::required_duration("max", max.as_ref(), WAIT, faults).unwrap_or(min);
    Waits::Random { min, max, jitter: jitter(*kind, *jitter_share, Jitter::None, faults) }
}

fn incrementing(wire: &v1::IncrementingBackoff, faults: &mut Faults) -> Waits {
    let v1::IncrementingBackoff { initial, step, max, jitter, jitter_share, over_max } = wire;
    Waits::Incrementing {
        initial: first("initial", initial.as_ref(), faults),
        step: amount::required_step("step", step.as_ref(), STEP, faults).unwrap_or(BackoffStep::Up(REFUSED)),
        growth: Growth {
            max: amount::duration("max", max.as_ref(), WAIT, faults).unwrap_or(WAIT.max),
            over_max: self::over_max(*over_max, faults),
            jitter: self::jitter(*jitter, *jitter_share, Jitter::None, faults),
        },
    }
}

fn exponential(wire: &v1::ExponentialBackoff, faults: &mut Faults) -> Waits {
    let v1::ExponentialBackoff { base, multiplier, max, jitter, jitter_share, over_max } = wire;
    let base = match base {
        None => Waits::DEFAULT_BASE,
        Some(base) => first("base", Some(base), faults),
    };
    let multiplier = amount::ratio("multiplier", *multiplier, MULTIPLIER, faults);
    let max = amount::duration("max", max.as_ref(), WAIT, faults);
    Waits::Exponential {
        base,
        multiplier: multiplier.unwrap_or(Waits::DEFAULT_MULTIPLIER),
        growth: Growth {
            max: max.unwrap_or(base.max(Waits::DEFAULT_MAX)),
            over_max: self::over_max(*over_max, faults),
            jitter: self::jitter(*jitter, *jitter_share, Jitter::Full, faults),
        },
    }
}

fn fibonacci(wire: &v1::FibonacciBackoff, faults: &mut Faults) -> Waits {
    let v1::FibonacciBackoff { unit, max, jitter, jitter_share, over_max } = wire;
    Waits::Fibonacci {
        unit: first("unit", unit.as_ref(), faults),
        growth: Growth {
            max: amount::duration("max", max.as_ref(), WAIT, faults).unwrap_or(WAIT.max),
            over_max: self::over_max(*over_max, faults),
            jitter: self::jitter(*jitter, *jitter_share, Jitter::None, faults),
        },
    }
}

fn custom(wire: &v1::CustomBackoff, faults: &mut Faults) -> Waits {
    let v1::CustomBackoff { delays, jitter: kind, jitter_share } = wire;
    let delay = |at: &str, delay: &prost_types::Duration, faults: &mut Faults| {
        amount::duration(at, Some(delay), WAIT, faults).unwrap_or(REFUSED)
    };
    Waits::Custom {
        delays: entries("delays", delays, &REFUSED, delay, faults),
        jitter: jitter(*kind, *jitter_share, Jitter::None, faults),
    }
}

/// Reads a required wait.
fn first(path: &str, wire: Option<&prost_types::Duration>, faults: &mut Faults) -> Duration {
    let wait = amount::required_duration(path, wire, WAIT, faults).unwrap_or(REFUSED);
    amount::in_bounds(path, wait, WAIT, faults)
}

fn over_max(number: i32, faults: &mut Faults) -> OverMax {
    match v1::OverMax::try_from(number) {
        Ok(v1::OverMax::Unspecified | v1::OverMax::Cap) => OverMax::Cap,
        Ok(v1::OverMax::Stop) => OverMax::Stop,
        Err(_) => {
            faults.add("over_max", format!("must be cap or stop, not {number}"));
            OverMax::Cap
        }
    }
}

fn jitter(kind: i32, share: Option<f64>, default: Jitter, faults: &mut Faults) -> Jitter {
    let kind = v1::Jitter::try_from(kind).map_err(|_| {
        faults.add("jitter", format!("must be none, full, equal, plus_minus or decorrelated, not {kind}"));
    });
    let has_share = share.is_some();
    let share = amount::ratio("jitter_share", share, JITTER_SHARE, faults);
    let Ok(kind) = kind else { return default };
    if kind == v1::Jitter::PlusMinus {
        if !has_share {
            faults.add("jitter_share", format!("required with jitter plus_minus ({JITTER_SHARE})"));
        }
        return Jitter::PlusMinus(share.unwrap_or(Ratio::ONE));
    }
    if has_share {
        faults.add("jitter_share", "applies only with jitter: plus_minus");
    }
    match kind {
        v1::Jitter::Unspecified | v1::Jitter::PlusMinus => default,
        v1::Jitter::None => Jitter::None,
        v1::Jitter::Full => Jitter::Full,
        v1::Jitter::Equal => Jitter::Equal,
        v1::Jitter::Decorrelated => Jitter::Decorrelated,
    }
}

impl From<&Waits> for v1::Backoff {
    fn from(waits: &Waits) -> Self {
        let (jitter, jitter_share) = jitter_to_wire(waits.jitter());
        let wait = |wait: &Duration| Some(amount::to_wire(*wait));
        let kind = match waits {
            Waits::None => Kind::None(v1::NoBackoff {}),
            Waits::Fixed { delay, jitter: _ } => {
                Kind::Fixed(v1::FixedBackoff { delay: wait(delay), jitter, jitter_share })
            }
            Waits::Random { min, max, jitter: _ } => {
                Kind::Random(v1::RandomBackoff { min: wait(min), max: wait(max), jitter, jitter_share })
            }
            Waits::Incrementing { initial, step, growth: Growth { max, over_max, jitter: _ } } => {
                Kind::Incrementing(v1::IncrementingBackoff {
                    initial: wait(initial),
                    step: Some(amount::step_to_wire(*step)),
                    max: wait(max),
                    jitter,
                    jitter_share,
                    over_max: v1::OverMax::from(*over_max).into(),
                })
            }
            Waits::Exponential { base, multiplier, growth: Growth { max, over_max, jitter: _ } } => {
                Kind::Exponential(v1::ExponentialBackoff {
                    base: wait(base),
                    multiplier: Some(amount::ratio_to_wire(*multiplier)),
                    max: wait(max),
                    jitter,
                    jitter_share,
                    over_max: v1::OverMax::from(*over_max).into(),
                })
            }
            Waits::Fibonacci { unit, growth: Growth { max, over_max, jitter: _ } } => {
                Kind::Fibonacci(v1::FibonacciBackoff {
                    unit: wait(unit),
                    max: wait(max),
                    jitter,
                    jitter_share,
                    over_max: v1::OverMax::from(*over_max).into(),
                })
            }
            Waits::Custom { delays, jitter: _ } => Kind::Custom(v1::CustomBackoff {
                delays: delays.iter().copied().map(amount::to_wire).collect(),
                jitter,
                jitter_share,
            }),
        };
        Self { kind: Some(kind) }
    }
}

impl From<OverMax> for v1::OverMax {
    fn from(over_max: OverMax) -> Self {
        match over_max {
            OverMax::Cap => Self::Cap,
            OverMax::Stop => Self::Stop,
        }
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
