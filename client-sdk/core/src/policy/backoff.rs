//! Settings of the waits before retries; [`backoff`](crate::backoff) has the formulas.

use std::time::Duration;

use super::check_order;
use crate::fault::{Bounds, Faults, Millis, Ratio};
use crate::outcome::code::{Code, CodeSet};

/// Each wait of a backoff.
pub const WAIT: Bounds<Duration> = Bounds { min: Duration::ZERO, max: Duration::from_secs(24 * 3600) };
/// `incrementing.step`, up or down.
pub const STEP: Bounds<Duration> = WAIT;
/// `exponential.multiplier`
pub const MULTIPLIER: Bounds<Ratio> = Bounds { min: Ratio::ONE, max: Ratio::from_bp(100_000) };
/// `jitter_share`
pub const JITTER_SHARE: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1), max: Ratio::ONE };
/// `custom.delays`, `sum.parts`, `by_code.codes`: number of entries.
pub const LIST_LENGTH: Bounds<u32> = Bounds { min: 1, max: 32 };

/// Wait before each retry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Backoff {
    /// One sequence for all codes.
    Always(Waits),
    /// The sum of several sequences.
    Sum(Vec<Waits>),
    /// One sequence per code.
    ByCode {
        /// For all other codes.
        default: Waits,
        /// The first entry with the code applies.
        codes: Vec<(CodeSet, Waits)>,
    },
}

/// A sequence of waits: wait n for n = 1, 2, ...
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Waits {
    /// No wait.
    None,
    /// The same wait each time.
    Fixed {
        /// The wait.
        delay: Duration,
        /// Random part.
        jitter: Jitter,
    },
    /// Uniform in [min, max).
    Random {
        /// The shortest wait.
        min: Duration,
        /// Waits are shorter than this, unless it equals `min`.
        max: Duration,
        /// Random part of the drawn wait.
        jitter: Jitter,
    },
    /// initial + step x (n-1), between 0 and max.
    Incrementing {
        /// The first wait.
        initial: Duration,
        /// Difference between two waits.
        step: Increment,
        /// Maximum and random part.
        growth: Growth,
    },
    /// min(base x multiplier^(n-1), max).
    Exponential {
        /// The first wait.
        base: Duration,
        /// Factor between two waits.
        multiplier: Ratio,
        /// How it ends.
        growth: Growth,
    },
    /// min(unit x fibonacci(n), max): 1, 1, 2, 3, 5, ... units.
    Fibonacci {
        /// The first wait.
        unit: Duration,
        /// How it ends.
        growth: Growth,
    },
    /// These waits; the call ends after the last one.
    Custom {
        /// The n-th entry is wait n.
        delays: Vec<Duration>,
        /// Random part.
        jitter: Jitter,
    },
}

/// Maximum and random part of a growing sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Growth {
    /// The longest wait.
    pub max: Duration,
    /// Behaviour if a wait exceeds `max`.
    pub over_max: OverMax,
    /// The random part.
    pub jitter: Jitter,
}

/// Behaviour if a wait, before its random part, exceeds `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OverMax {
    /// The wait is `max`.
    #[default]
    Cap,
    /// The call ends.
    Stop,
}

/// The difference between two waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Increment {
    /// Each wait is longer by this.
    Up(Duration),
    /// Each wait is shorter by this, down to 0.
    Down(Duration),
}

/// The random part of a wait of length d.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Jitter {
    /// d unchanged.
    None,
    /// Uniform in [0, d].
    Full,
    /// d/2 + uniform in [0, d/2].
    Equal,
    /// Uniform in [d x (1 - share), d x (1 + share)].
    PlusMinus(Ratio),
    /// Uniform in [base, 3 x previous wait].
    Decorrelated,
}

impl Backoff {
    pub(super) fn check(&self, path: &str, faults: &mut Faults) {
        match self {
            Self::Always(waits) => waits.check(path, faults),
            Self::Sum(parts) => {
                check_length(&format!("{path}.sum.parts"), parts.len(), faults);
                for (i, part) in parts.iter().enumerate() {
                    part.check(&format!("{path}.sum.parts[{i}]"), faults);
                    if part.jitter() == Jitter::Decorrelated {
                        let problem = "decorrelated is not allowed in a sum: it depends on the wait before";
                        faults.add(format!("{path}.sum.parts[{i}].{}.jitter", part.name()), problem);
                    }
                }
            }
            Self::ByCode { default, codes } => {
                let path = format!("{path}.by_code");
                default.check(&format!("{path}.default"), faults);
                check_length(&format!("{path}.codes"), codes.len(), faults);
                for (i, (set, waits)) in codes.iter().enumerate() {
                    if set.is_empty() || set.contains(Code::Ok) {
                        faults.add(
                            format!("{path}.codes[{i}].codes"),
                            "must contain at least one code, and not OK",
                        );
                    }
                    waits.check(&format!("{path}.codes[{i}].backoff"), faults);
                }
            }
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::Always(Waits::default())
    }
}

impl Waits {
    /// The default first wait of an exponential backoff.
    pub const DEFAULT_BASE: Duration = Duration::from_millis(25);
    /// The default ceiling of an exponential backoff.
    pub const DEFAULT_MAX: Duration = Duration::from_millis(250);
    /// The default growth of an exponential backoff.
    pub const DEFAULT_MULTIPLIER: Ratio = Ratio::from_bp(20_000);

    /// Returns the random part of the waits.
    #[must_use]
    pub fn jitter(&self) -> Jitter {
        match self {
            Self::None => Jitter::None,
            Self::Fixed { jitter, .. } | Self::Random { jitter, .. } | Self::Custom { jitter, .. } => *jitter,
            Self::Incrementing { growth, .. }
            | Self::Exponential { growth, .. }
            | Self::Fibonacci { growth, .. } => growth.jitter,
        }
    }

    /// Returns the name of the kind as in manifests.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fixed { .. } => "fixed",
            Self::Random { .. } => "random",
            Self::Incrementing { .. } => "incrementing",
            Self::Exponential { .. } => "exponential",
            Self::Fibonacci { .. } => "fibonacci",
            Self::Custom { .. } => "custom",
        }
    }

    fn check(&self, path: &str, faults: &mut Faults) {
        let path = format!("{path}.{}", self.name());
        let at = |field: &str| format!("{path}.{field}");
        if let Jitter::PlusMinus(share) = self.jitter() {
            JITTER_SHARE.check(&at("jitter_share"), share, faults);
        }
        match self {
            Self::None => {}
            Self::Fixed { delay, .. } => WAIT.check(&at("delay"), *delay, faults),
            Self::Random { min, max, .. } => {
                WAIT.check(&at("min"), *min, faults);
                WAIT.check(&at("max"), *max, faults);
                check_order(&at("max"), "min", *min, *max, faults);
            }
            Self::Incrementing { initial, step, growth } => {
                WAIT.check(&at("initial"), *initial, faults);
                step.check(&at("step"), faults);
                WAIT.check(&at("max"), growth.max, faults);
                check_order(&at("max"), "initial", *initial, growth.max, faults);
            }
            Self::Exponential { base, multiplier, growth } => {
                WAIT.check(&at("base"), *base, faults);
                MULTIPLIER.check(&at("multiplier"), *multiplier, faults);
                WAIT.check(&at("max"), growth.max, faults);
                check_order(&at("max"), "base", *base, growth.max, faults);
            }
            Self::Fibonacci { unit, growth } => {
                WAIT.check(&at("unit"), *unit, faults);
                WAIT.check(&at("max"), growth.max, faults);
                check_order(&at("max"), "unit", *unit, growth.max, faults);
            }
            Self::Custom { delays, .. } => {
                check_length(&at("delays"), delays.len(), faults);
                for (i, delay) in delays.iter().enumerate() {
                    WAIT.check(&format!("{path}.delays[{i}]"), *delay, faults);
                }
            }
        }
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self::Exponential {
            base: Self::DEFAULT_BASE,
            multiplier: Self::DEFAULT_MULTIPLIER,
            growth: Growth { max: Self::DEFAULT_MAX, over_max: OverMax::Cap, jitter: Jitter::Full },
        }
    }
}

impl Increment {
    fn check(self, path: &str, faults: &mut Faults) {
        let (Self::Up(size) | Self::Down(size)) = self;
        if size > STEP.max {
            let max = Millis(STEP.max);
            let sign = if matches!(self, Self::Down(_)) { "-" } else { "" };
            faults.add(path, format!("must be between -{max} and {max}, not {sign}{}", Millis(size)));
        }
    }
}

fn check_length(path: &str, length: usize, faults: &mut Faults) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if !(LIST_LENGTH.min..=LIST_LENGTH.max).contains(&length) {
        faults.add(
            path,
            format!("must have between {} and {} entries, not {length}", LIST_LENGTH.min, LIST_LENGTH.max),
        );
    }
}
