//! Random numbers of a simulation, from one seed.
//!
//! Xoshiro256++ (Blackman and Vigna), seeded by SplitMix64: both are fixed algorithms with published test
//! vectors, so a seed means the same numbers on every platform and in every later build. Each use has a stream
//! of its own, a jump of 2^128 numbers apart: strategies that are compared meet the same arrivals, however
//! many numbers they need for anything else.

use rand_core::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Returns the stream of this number under a seed.
    pub(crate) fn new(seed: u64, stream: u32) -> Self {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..stream).for_each(|_| generator.jump());
        Self(generator)
    }

    /// Returns any number.
    pub(crate) fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, by multiplication: the bias is below `end / 2^64`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(end)) >> 64) as u64
    }

    /// Returns an index of a list of that length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True in this number of 10,000 draws. Draws nothing if the result is certain.
    pub(crate) fn happens(&mut self, share_bp: u32) -> bool {
        match share_bp {
            0 => false,
            10_000.. => true,
            _ => self.below(10_000) < u64::from(share_bp),
        }
    }

    /// Returns a number of at least 0 and below 1, in steps of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.any() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}
