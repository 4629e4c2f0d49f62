//! Random numbers derived from the one that is passed in.

/// Independent random numbers from a seed.
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(random: u64) -> Self {
        Self(random)
    }

    /// Returns the seed first, then numbers mixed from the one before (finalizer of SplitMix64, Steele, Lea
    /// and Flood 2014).
    pub(crate) fn next(&mut self) -> u64 {
        let drawn = self.0;
        let mut mixed = drawn.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = mixed ^ (mixed >> 31);
        drawn
    }

    /// Returns an index below `length`.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let last = u64::try_from(length).unwrap_or(u64::MAX).saturating_sub(1);
        usize::try_from(uniform(0, last, self.next())).unwrap_or(0)
    }
}

/// Returns a number uniform in [low, high]; `low` if the range is empty.
pub(crate) fn uniform(low: u64, high: u64, random: u64) -> u64 {
    let span = u128::from(high.saturating_sub(low)) + 1;
    let offset = (u128::from(random) * span) >> 64;
    low.saturating_add(u64::try_from(offset).unwrap_or(0))
}
