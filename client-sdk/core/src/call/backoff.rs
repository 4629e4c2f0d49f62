//! Waits before retries.
//!
//! ```text
//! fixed         d = delay
//! random        d uniform in [min, max)
//! incrementing  d = initial + step x (n-1), at least 0
//! exponential   d = base x multiplier^(n-1), not rounded at each step
//! fibonacci     d = unit x 1, 1, 2, 3, 5, ...
//! custom        d = the n-th of a list; the call ends when the list is used up
//! sum           the waits of several added up
//! by_code       another sequence for given codes
//!
//! none          d                             full          uniform in [0, d]
//! equal         d/2 + uniform in [0, d/2]     plus_minus    uniform in [d(1-p), d(1+p)]
//! decorrelated  uniform in [base, 3 x previous wait]
//! ```
//!
//! n = 1, 2, ... counts the retries since the sequence (re)started, whatever they failed with. A wait never
//! exceeds the ceiling (`max`; 24 h if there is none, and for a sum). At the ceiling there is still jitter:
//! the interval is cut, not the drawn number. With `over_max: stop` the call ends if d, before its random
//! part, exceeds the ceiling.
//!
//! Source of the jitters: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

use std::time::Duration;

use crate::fault::Ratio;
use crate::outcome::code::Code;
use crate::policy::{self, Backoff, Growth, Increment, Jitter, OverMax, Waits};
use crate::random::{Draws, uniform};
use crate::time::micros;

/// Position of a call in its sequence of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    waits: u32,
    previous_us: u64,
}

impl Sequence {
    /// Returns the number of waits so far and the last one in microseconds, for a driver that stores them.
    #[must_use]
    pub const fn to_parts(self) -> (u32, u64) {
        (self.waits, self.previous_us)
    }

    /// Restores a stored position.
    #[must_use]
    pub const fn from_parts(waits: u32, previous_us: u64) -> Self {
        Self { waits, previous_us }
    }

    /// Returns the next wait after an attempt failed with `code`; `None` if the sequence has ended. `random`
    /// is uniform over all of `u64`.
    pub fn next(&mut self, backoff: &Backoff, code: Code, random: u64) -> Option<Duration> {
        self.waits = self.waits.saturating_add(1);
        let mut draws = Draws::new(random);
        let wait_us = match backoff {
            Backoff::Always(waits) => self.wait(waits, &mut draws),
            Backoff::Sum(parts) => parts
                .iter()
                .try_fold(0_u64, |sum, part| Some(sum.saturating_add(self.wait(part, &mut draws)?)))
                .map(|sum| sum.min(micros(policy::WAIT.max))),
            Backoff::ByCode { default, codes } => {
                let waits =
                    codes.iter().find(|(set, _)| set.contains(code)).map_or(default, |(_, waits)| waits);
                self.wait(waits, &mut draws)
            }
        }?;
        self.previous_us = wait_us;
        Some(Duration::from_micros(wait_us))
    }

    /// Restarts with n = 1, for example after a pushback.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    fn wait(&self, waits: &Waits, draws: &mut Draws) -> Option<u64> {
        let steps = self.waits.saturating_sub(1);
        let (base, wait, growth) = match waits {
            Waits::None => return Some(0),
            Waits::Fixed { delay, jitter } => (*delay, micros(*delay), capped_at(policy::WAIT.max, *jitter)),
            Waits::Random { min, max, jitter } => {
                let drawn = uniform(micros(*min), micros(*max).saturating_sub(1), draws.next());
                (*min, drawn, capped_at((*max).max(*min), *jitter))
            }
            Waits::Incrementing { initial, step, growth } => {
                (*initial, incremented(micros(*initial), *step, steps), *growth)
            }
            Waits::Exponential { base, multiplier, growth } => {
                (*base, multiplied(micros(*base), *multiplier, steps, micros(growth.max)), *growth)
            }
            Waits::Fibonacci { unit, growth } => {
                (*unit, micros(*unit).saturating_mul(fibonacci(steps, micros(growth.max))), *growth)
            }
            Waits::Custom { delays, jitter } => {
                let delay = *delays.get(usize::try_from(steps).ok()?)?;
                (delay, micros(delay), capped_at(policy::WAIT.max, *jitter))
            }
        };
        let max = micros(growth.max);
        if wait > max && growth.over_max == OverMax::Stop {
            return None;
        }
        let (low, high) = self.interval(growth.jitter, micros(base), wait.min(max));
        Some(if low == high { low.min(max) } else { uniform(low.min(max), high.min(max), draws.next()) })
    }

    /// Returns the interval of a wait.
    fn interval(&self, jitter: Jitter, base: u64, wait: u64) -> (u64, u64) {
        match jitter {
            Jitter::None => (wait, wait),
            Jitter::Full => (0, wait),
            Jitter::Equal => (wait / 2, wait),
            Jitter::PlusMinus(share) => {
                let part = scaled(wait, share);
                (wait.saturating_sub(part), wait.saturating_add(part))
            }
            Jitter::Decorrelated => (base, self.previous_us.max(base).saturating_mul(3)),
        }
    }
}

fn capped_at(max: Duration, jitter: Jitter) -> Growth {
    Growth { max, over_max: OverMax::Cap, jitter }
}

/// Returns initial + step x steps, at least 0.
fn incremented(initial_us: u64, step: Increment, steps: u32) -> u64 {
    let by = |size: Duration| micros(size).saturating_mul(u64::from(steps));
    match step {
        Increment::Up(size) => initial_us.saturating_add(by(size)),
        Increment::Down(size) => initial_us.saturating_sub(by(size)),
    }
}

/// Returns base x multiplier^steps, computed in millionths of a microsecond so that steps do not round; `max`
/// + 1 if it exceeds `max`.
fn multiplied(base_us: u64, multiplier: Ratio, steps: u32, max_us: u64) -> u64 {
    const FINE: u128 = 1_000_000;
    let max = u128::from(max_us) * FINE;
    let mut wait = u128::from(base_us) * FINE;
    for _ in 0..steps {
        if wait > max || wait == 0 || multiplier == Ratio::ONE {
            break;
        }
        wait = wait * u128::from(multiplier.bp()) / 10_000;
    }
    if wait > max { max_us.saturating_add(1) } else { u64::try_from(wait / FINE).unwrap_or(max_us) }
}

/// Returns the number after `steps` others in 1, 1, 2, 3, 5, ...; any number above `max` if it exceeds `max`.
fn fibonacci(steps: u32, max: u64) -> u64 {
    let (mut this, mut next) = (1_u64, 1_u64);
    for _ in 0..steps {
        if this > max {
            break;
        }
        (this, next) = (next, this.saturating_add(next));
    }
    this
}

fn scaled(us: u64, share: Ratio) -> u64 {
    u64::try_from(u128::from(us) * u128::from(share.bp()) / 10_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
