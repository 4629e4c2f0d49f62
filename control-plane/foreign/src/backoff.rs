//! A backoff of a rule as the one curve that targets have: first wait, factor, longest wait.
//!
//! A curve keeps the first and the longest wait, and approximates what lies between. Sums and backoffs by
//! code become one curve: no target has more.

use std::time::Duration;

use damper_core::{Backoff, BackoffStep, Code, Ratio, Waits};
use damper_proto::v1;

/// The shortest first wait: targets reject 0.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest wait of a rule.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// min(base x factor^(n-1), max).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) base: Duration,
    pub(crate) factor: Ratio,
    pub(crate) max: Duration,
}

impl Curve {
    /// Returns the curve of a backoff.
    pub(crate) fn of(backoff: &Backoff) -> Self {
        let Self { base, factor, max } = match backoff {
            Backoff::Always(waits) | Backoff::ByCode { default: waits, .. } => Self::of_waits(waits),
            Backoff::Sum(parts) => {
                parts.iter().map(Self::of_waits).fold(Self::flat(Duration::ZERO), |sum, part| {
                    let factor = Ratio::from_bp(sum.factor.bp().max(part.factor.bp()));
                    Self { base: sum.base + part.base, factor, max: sum.max + part.max }
                })
            }
        };
        let base = base.clamp(SHORTEST, LONGEST);
        Self { base, factor, max: max.clamp(base, LONGEST) }
    }

    /// Returns the same wait each time.
    pub(crate) fn flat(wait: Duration) -> Self {
        Self { base: wait, factor: Ratio::ONE, max: wait }
    }

    fn of_waits(waits: &Waits) -> Self {
        let double = Ratio::from_bp(20_000);
        match waits {
            Waits::None => Self::flat(Duration::ZERO),
            Waits::Fixed { delay, .. } => Self::flat(*delay),
            Waits::Random { min, max, .. } => Self { base: *min, factor: double, max: *max },
            Waits::Incrementing { initial, step: BackoffStep::Down(_), .. } => Self::flat(*initial),
            Waits::Incrementing { initial, growth, .. } => {
                Self { base: *initial, factor: double, max: growth.max }
            }
            Waits::Exponential { base, multiplier, growth } => {
                Self { base: *base, factor: *multiplier, max: growth.max }
            }
            Waits::Fibonacci { unit, growth } => {
                Self { base: *unit, factor: Ratio::from_bp(16_000), max: growth.max }
            }
            Waits::Custom { delays, .. } => Self {
                base: delays.first().copied().unwrap_or_default(),
                factor: double,
                max: delays.iter().max().copied().unwrap_or_default(),
            },
        }
    }

    /// Returns the curve as the backoff of a rule.
    pub(crate) fn wire(self, jitter: v1::Jitter, share: Option<f64>) -> v1::Backoff {
        let exponential = v1::ExponentialBackoff {
            base: Some(wire(self.base)),
            multiplier: Some(f64::from(self.factor.bp()) / 10_000.0),
            max: Some(wire(self.max)),
            jitter: jitter.into(),
            jitter_share: share,
            over_max: v1::OverMax::Cap.into(),
        };
        v1::Backoff { kind: Some(v1::backoff::Kind::Exponential(exponential)) }
    }
}

/// Returns a duration of the wire.
pub(crate) fn wire(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

/// Returns codes of the wire.
pub(crate) fn allow(codes: impl IntoIterator<Item = Code>) -> v1::Codes {
    let codes = codes.into_iter().map(|code| i32::try_from(code.number()).unwrap_or_default()).collect();
    v1::Codes { kind: Some(v1::codes::Kind::Allow(v1::CodeList { codes })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_longest_wait_are_those_of_the_rule() {
        let ms = Duration::from_millis;
        let jitter = damper_core::Jitter::None;
        let custom = Waits::Custom { delays: vec![ms(5), ms(70), ms(20)], jitter };
        let random = Waits::Random { min: ms(10), max: ms(90), jitter };
        let table = [
            (Backoff::Always(Waits::None), ms(1), ms(1)),
            (Backoff::Always(custom.clone()), ms(5), ms(70)),
            (Backoff::Sum(vec![custom, random.clone()]), ms(15), ms(160)),
            (Backoff::ByCode { default: random, codes: vec![] }, ms(10), ms(90)),
        ];
        for (backoff, base, max) in table {
            let curve = Curve::of(&backoff);
            assert_eq!((curve.base, curve.max), (base, max), "{backoff:?}");
        }
    }
}
