//! Waits between attempts, in the builder's words. The formulas are those of `damper_core::backoff`.

use std::time::Duration;

use damper_core::{BackoffStep, Code, CodeSet, Growth, Jitter, OverMax, Ratio, Waits, backoff, policy};

/// Waits between attempts.
///
/// ```
/// use std::time::Duration;
/// use damper_retry::{Backoff, Jitter};
///
/// let longest = Duration::from_secs(2);
/// let backoff = Backoff::exponential(Duration::from_millis(50)).max(longest).jitter(Jitter::Full);
/// # drop(backoff);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff(damper_core::Backoff);

impl Backoff {
    /// No wait.
    #[must_use]
    pub fn none() -> Self {
        Self::of(Waits::None)
    }

    /// The same wait each time.
    #[must_use]
    pub fn fixed(delay: Duration) -> Self {
        Self::of(Waits::Fixed { delay, jitter: Jitter::None })
    }

    /// A random wait in [min, max).
    #[must_use]
    pub fn random(min: Duration, max: Duration) -> Self {
        Self::of(Waits::Random { min, max, jitter: Jitter::None })
    }

    /// `initial`, then each wait longer by `step`.
    #[must_use]
    pub fn incrementing(initial: Duration, step: Duration) -> Self {
        Self::of(Waits::Incrementing { initial, step: BackoffStep::Up(step), growth: unlimited() })
    }

    /// `initial`, then each wait shorter by `step`, down to 0.
    #[must_use]
    pub fn decrementing(initial: Duration, step: Duration) -> Self {
        Self::of(Waits::Incrementing { initial, step: BackoffStep::Down(step), growth: unlimited() })
    }

    /// `base`, then each wait twice the one before, or that of [`multiplier`](Self::multiplier).
    #[must_use]
    pub fn exponential(base: Duration) -> Self {
        Self::of(Waits::Exponential { base, multiplier: Waits::DEFAULT_MULTIPLIER, growth: unlimited() })
    }

    /// `unit` x 1, 1, 2, 3, 5, ...
    #[must_use]
    pub fn fibonacci(unit: Duration) -> Self {
        Self::of(Waits::Fibonacci { unit, growth: unlimited() })
    }

    /// These waits; the call ends after the last one.
    #[must_use]
    pub fn list(delays: impl Into<Vec<Duration>>) -> Self {
        Self::of(Waits::Custom { delays: delays.into(), jitter: Jitter::None })
    }

    /// The waits of several sequences added up. Sequences that are sums themselves, or differ by code, add
    /// their parts.
    #[must_use]
    pub fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        Self(damper_core::Backoff::Sum(parts.into_iter().flat_map(Self::parts).collect()))
    }

    /// These waits after errors with one of the codes, otherwise those of `self`.
    #[must_use]
    pub fn after(self, codes: &[Code], waits: Self) -> Self {
        let (default, mut by_code) = match self.0 {
            damper_core::Backoff::ByCode { default, codes } => (default, codes),
            other => (Self(other).first(), Vec::new()),
        };
        by_code.push((CodeSet::of(codes), waits.first()));
        Self(damper_core::Backoff::ByCode { default, codes: by_code })
    }

    /// Sets the factor of exponential waits, in steps of 0.0001.
    #[must_use]
    pub fn multiplier(self, factor: f64) -> Self {
        self.map(|waits| {
            if let Waits::Exponential { multiplier, .. } = waits {
                *multiplier = ratio(factor);
            }
        })
    }

    /// Sets the longest wait of a growing sequence.
    #[must_use]
    pub fn max(self, max: Duration) -> Self {
        self.map(|waits| {
            if let Some(growth) = growth(waits) {
                growth.max = max
            }
        })
    }

    /// Ends the call instead of waiting longer than [`max`](Self::max).
    #[must_use]
    pub fn stop_at_max(self) -> Self {
        self.map(|waits| {
            if let Some(growth) = growth(waits) {
                growth.over_max = OverMax::Stop
            }
        })
    }

    /// Sets the random part of each wait.
    #[must_use]
    pub fn jitter(self, jitter: Jitter) -> Self {
        self.map(|waits| match waits {
            Waits::None => {}
            Waits::Fixed { jitter: own, .. }
            | Waits::Random { jitter: own, .. }
            | Waits::Custom { jitter: own, .. } => *own = jitter,
            Waits::Incrementing { growth, .. }
            | Waits::Exponential { growth, .. }
            | Waits::Fibonacci { growth, .. } => growth.jitter = jitter,
        })
    }

    /// Sets a random part of plus or minus this share of the wait, 0 to 1.
    #[must_use]
    pub fn jitter_share(self, share: f64) -> Self {
        self.jitter(if share == 0.0 { Jitter::None } else { Jitter::PlusMinus(ratio(share)) })
    }

    /// Returns the first waits, for tests and documents; `random` is uniform over all of `u64`.
    pub fn preview(&self, mut random: impl FnMut() -> u64) -> impl Iterator<Item = Duration> {
        let mut sequence = backoff::Sequence::default();
        std::iter::from_fn(move || sequence.next(&self.0, Code::Unavailable, random()))
    }

    pub(crate) fn into_core(self) -> damper_core::Backoff {
        self.0
    }

    fn of(waits: Waits) -> Self {
        Self(damper_core::Backoff::Always(waits))
    }

    fn parts(self) -> Vec<Waits> {
        match self.0 {
            damper_core::Backoff::Always(waits) => vec![waits],
            damper_core::Backoff::Sum(parts) => parts,
            damper_core::Backoff::ByCode { default, .. } => vec![default],
        }
    }

    fn first(self) -> Waits {
        self.parts().into_iter().next().unwrap_or(Waits::None)
    }

    fn map(mut self, change: impl Fn(&mut Waits)) -> Self {
        match &mut self.0 {
            damper_core::Backoff::Always(waits) => change(waits),
            damper_core::Backoff::Sum(parts) => parts.iter_mut().for_each(change),
            damper_core::Backoff::ByCode { default, codes } => {
                change(default);
                codes.iter_mut().for_each(|(_, waits)| change(waits));
            }
        }
        self
    }
}

impl From<damper_core::Backoff> for Backoff {
    fn from(backoff: damper_core::Backoff) -> Self {
        Self(backoff)
    }
}

fn unlimited() -> Growth {
    Growth { max: policy::WAIT.max, over_max: OverMax::Cap, jitter: Jitter::None }
}

fn growth(waits: &mut Waits) -> Option<&mut Growth> {
    match waits {
        Waits::Incrementing { growth, .. }
        | Waits::Exponential { growth, .. }
        | Waits::Fibonacci { growth, .. } => Some(growth),
        Waits::None | Waits::Fixed { .. } | Waits::Random { .. } | Waits::Custom { .. } => None,
    }
}

/// Returns the ratio in steps of 0.0001. Values that are no ratio become one that the checks reject.
fn ratio(value: f64) -> Ratio {
    let parts = (value * 10_000.0).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, and NaN is 0"
    )]
    Ratio::from_bp(if parts >= 0.0 { parts as u32 } else { 0 })
}
