//! How long to wait before a retry.
//!
//! ```text
//! fixed         d = delay
//! random        uniform in [min, max)
//! exponential   d = min(base x multiplier^(n-1), max), not rounded at each step
//!
//! none          d                             full          uniform in [0, d]
//! equal         d/2 + uniform in [0, d/2]     plus_minus    uniform in [d(1-p), d(1+p)]
//! decorrelated  uniform in [base, 3 x previous wait]
//! ```
//!
//! n = 1, 2, ... counts the retries since the sequence (re)started. A wait never exceeds the ceiling (`max`;
//! 24 h where there is none), and there still is jitter at the ceiling: the interval that is drawn from is
//! cut, not the number drawn.
//!
//! Source of the jitters: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

use std::time::Duration;

use crate::fault::Ratio;
use crate::policy::{self, Backoff, Jitter};
use crate::time::micros;

/// Where a call stands in its sequence of waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequence {
    waits: u32,
    previous_us: u64,
}

impl Sequence {
    /// The next wait; `random` is uniform over all of `u64`.
    pub fn next(&mut self, backoff: &Backoff, random: u64) -> Duration {
        self.waits = self.waits.saturating_add(1);
        let wait_us = match *backoff {
            Backoff::None => 0,
            Backoff::Fixed { delay, jitter } => {
                let ceiling = micros(policy::WAIT.max);
                self.jittered(jitter, micros(delay), micros(delay), ceiling, random)
            }
            Backoff::Random { min, max } => uniform(micros(min), micros(max).saturating_sub(1), random),
            Backoff::Exponential { base, multiplier, max, jitter } => {
                let wait_us = grown(micros(base), multiplier, self.waits - 1, micros(max));
                self.jittered(jitter, micros(base), wait_us, micros(max), random)
            }
        };
        self.previous_us = wait_us;
        Duration::from_micros(wait_us)
    }

    /// Begins again with n = 1, as after a server said itself how long to wait.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    fn jittered(&self, jitter: Jitter, base: u64, wait: u64, ceiling: u64, random: u64) -> u64 {
        let (low, high) = match jitter {
            Jitter::None => (wait, wait),
            Jitter::Full => (0, wait),
            Jitter::Equal => (wait / 2, wait),
            Jitter::PlusMinus(share) => {
                let part = scaled(wait, share);
                (wait.saturating_sub(part), wait.saturating_add(part))
            }
            Jitter::Decorrelated => (base, self.previous_us.max(base).saturating_mul(3)),
        };
        uniform(low.min(ceiling), high.min(ceiling), random)
    }
}

/// min(base x multiplier^steps, max), the product in thousandths of a microsecond so that steps do not round.
fn grown(base_us: u64, multiplier: Ratio, steps: u32, max_us: u64) -> u64 {
    const FINE: u128 = 1_000_000;
    let max = u128::from(max_us) * FINE;
    let mut wait = u128::from(base_us) * FINE;
    for _ in 0..steps {
        if wait >= max || multiplier == Ratio::ONE {
            break;
        }
        wait = wait * u128::from(multiplier.bp()) / 10_000;
    }
    u64::try_from(wait.min(max) / FINE).unwrap_or(max_us)
}

fn scaled(us: u64, share: Ratio) -> u64 {
    u64::try_from(u128::from(us) * u128::from(share.bp()) / 10_000).unwrap_or(u64::MAX)
}

/// Uniform in [low, high]; `low` if there is nothing between.
fn uniform(low: u64, high: u64, random: u64) -> u64 {
    let span = u128::from(high.saturating_sub(low)) + 1;
    let offset = (u128::from(random) * span) >> 64;
    low.saturating_add(u64::try_from(offset).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn exponential(base: u64, multiplier_bp: u32, max: u64, jitter: Jitter) -> Backoff {
        Backoff::Exponential {
            base: ms(base),
            multiplier: Ratio::from_bp(multiplier_bp),
            max: ms(max),
            jitter,
        }
    }

    fn waits(backoff: &Backoff, random: u64, count: usize) -> Vec<Duration> {
        let mut sequence = Sequence::default();
        (0..count).map(|_| sequence.next(backoff, random)).collect()
    }

    #[test]
    fn sequences_without_jitter_are_as_written() {
        let check = |backoff: Backoff, expected: &[u64]| {
            let expected: Vec<_> = expected.iter().copied().map(ms).collect();
            assert_eq!(waits(&backoff, u64::MAX / 3, expected.len()), expected, "{backoff:?}");
        };
        check(Backoff::None, &[0, 0, 0]);
        check(Backoff::Fixed { delay: ms(40), jitter: Jitter::None }, &[40, 40, 40]);
        check(exponential(25, 20_000, 250, Jitter::None), &[25, 50, 100, 200, 250, 250]);
        check(exponential(100, 10_000, 250, Jitter::None), &[100, 100, 100]);
        check(exponential(0, 20_000, 250, Jitter::None), &[0, 0, 0]);
        check(Backoff::Random { min: ms(7), max: ms(7) }, &[7, 7]);
    }

    #[test]
    fn growth_is_not_rounded_at_each_step() {
        let backoff = Backoff::Exponential {
            base: Duration::from_micros(1),
            multiplier: Ratio::from_bp(15_000),
            max: ms(1),
            jitter: Jitter::None,
        };
        // 1.5^n microseconds: rounding each step would stay at 1 for ever.
        let expected = [1, 1, 2, 3, 5, 7, 11, 17, 25, 38];
        assert_eq!(waits(&backoff, 0, 10), expected.map(Duration::from_micros));
    }

    #[test]
    fn jitter_covers_its_interval_and_nothing_else() {
        let check = |jitter: Jitter, low: u64, high: u64| {
            let backoff = Backoff::Fixed { delay: ms(100), jitter };
            assert_eq!(waits(&backoff, 0, 1), [ms(low)], "{jitter:?}");
            assert_eq!(waits(&backoff, u64::MAX, 1), [ms(high)], "{jitter:?}");
        };
        check(Jitter::Full, 0, 100);
        check(Jitter::Equal, 50, 100);
        check(Jitter::PlusMinus(Ratio::from_bp(2_500)), 75, 125);
        check(Jitter::Decorrelated, 100, 300);
    }

    #[test]
    fn jitter_still_exists_at_the_ceiling_and_never_exceeds_it() {
        let spread = |jitter| {
            let backoff = exponential(100, 20_000, 200, jitter);
            (waits(&backoff, 0, 5)[4], waits(&backoff, u64::MAX, 5)[4])
        };
        assert_eq!(spread(Jitter::Full), (ms(0), ms(200)));
        assert_eq!(spread(Jitter::Equal), (ms(100), ms(200)));
        assert_eq!(spread(Jitter::PlusMinus(Ratio::from_bp(5_000))), (ms(100), ms(200)));
        assert_eq!(spread(Jitter::Decorrelated), (ms(100), ms(200)));
    }

    #[test]
    fn random_stays_below_its_upper_end() {
        let backoff = Backoff::Random { min: ms(10), max: ms(20) };
        assert_eq!(waits(&backoff, 0, 1), [ms(10)]);
        assert_eq!(waits(&backoff, u64::MAX, 1), [Duration::from_micros(19_999)]);
    }

    #[test]
    fn a_restarted_sequence_begins_with_its_first_wait() {
        let backoff = exponential(25, 20_000, 250, Jitter::None);
        let mut sequence = Sequence::default();
        sequence.next(&backoff, 0);
        sequence.next(&backoff, 0);
        sequence.restart();
        assert_eq!(sequence.next(&backoff, 0), ms(25));
    }

    proptest! {
        #[test]
        fn no_setting_and_no_number_of_retries_overflows_or_exceeds_the_ceiling(
            base_us in prop_oneof![Just(0), Just(1), Just(86_400_000_000), 0_u64..86_400_000_000],
            over_us in 0_u64..86_400_000_000,
            multiplier_bp in prop_oneof![Just(10_000), Just(100_000), 10_000_u32..=100_000],
            share_bp in 1_u32..=10_000,
            jitter_kind in 0..5,
            random in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
            retries in prop_oneof![Just(1_usize), Just(200), 1_usize..40],
        ) {
            let jitter = match jitter_kind {
                0 => Jitter::None,
                1 => Jitter::Full,
                2 => Jitter::Equal,
                3 => Jitter::PlusMinus(Ratio::from_bp(share_bp)),
                _ => Jitter::Decorrelated,
            };
            let max_us = base_us.saturating_add(over_us).min(86_400_000_000);
            let backoff = Backoff::Exponential {
                base: Duration::from_micros(base_us),
                multiplier: Ratio::from_bp(multiplier_bp),
                max: Duration::from_micros(max_us),
                jitter,
            };
            for wait in waits(&backoff, random, retries) {
                prop_assert!(wait <= Duration::from_micros(max_us));
            }
            let fixed = Backoff::Fixed { delay: Duration::from_micros(base_us), jitter };
            for wait in waits(&fixed, random, retries) {
                prop_assert!(wait <= policy::WAIT.max);
            }
        }
    }
}
