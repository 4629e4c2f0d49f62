//! Measuring in turn: every round measures each variant once, so that what the machine does meanwhile meets all of
//! them, and a ratio is taken within a round, never across.
//!
//! What is reported is the median of the rounds with the smallest and the largest. Harnesses that measure one
//! variant after the other (criterion, divan) can not do this, and a shared machine drifts by more than the
//! differences that matter here.

use serde::{Deserialize, Serialize};

/// What the rounds came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the rounds were below.
    pub median: f64,
    /// The smallest round.
    pub min: f64,
    /// The largest round.
    pub max: f64,
}

impl Spread {
    /// Of rounds; all zero if there were none.
    #[must_use]
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        rounds.sort_by(f64::total_cmp);
        let at = |index: usize| rounds.get(index).copied().unwrap_or_default();
        let middle = rounds.len() / 2;
        let median = if rounds.len().is_multiple_of(2) {
            (at(middle.saturating_sub(1)) + at(middle)) / 2.0
        } else {
            at(middle)
        };
        Self { median, min: at(0), max: at(rounds.len().saturating_sub(1)) }
    }

    /// Of what is counted, not measured: it is the same each time.
    #[must_use]
    pub fn exactly(count: f64) -> Self {
        Self { median: count, min: count, max: count }
    }
}

/// The rounds of two variants, round by round.
pub fn pairwise<'a>(
    ours: &'a [f64],
    theirs: &'a [f64],
    of: impl Fn(f64, f64) -> f64 + 'a,
) -> impl Iterator<Item = f64> + 'a {
    ours.iter().zip(theirs).map(move |(&ours, &theirs)| of(ours, theirs))
}

/// Ours divided by theirs, round by round.
#[must_use]
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Spread {
    Spread::of(pairwise(ours, theirs, |ours, theirs| ours / theirs))
}

/// Measures every variant once per round, each round beginning with another one.
///
/// # Errors
/// The first that a variant answers with.
pub fn interleaved<V: Copy, E>(
    rounds: usize,
    variants: &[V],
    mut measure: impl FnMut(V) -> Result<f64, E>,
) -> Result<Vec<Vec<f64>>, E> {
    let mut measured = vec![Vec::with_capacity(rounds); variants.len()];
    for round in 0..rounds {
        for place in 0..variants.len() {
            let index = (round + place) % variants.len();
            if let (Some(&variant), Some(measured)) = (variants.get(index), measured.get_mut(index)) {
                measured.push(measure(variant)?);
            }
        }
    }
    Ok(measured)
}

/// The value that this share of the sorted values does not exceed; 0 if there are none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_the_extremes() {
        let spread = Spread::of([3.0, 1.0, 2.0, 10.0]);
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 10.0 });
        assert_eq!(Spread::of([7.0]), Spread::exactly(7.0));
    }

    #[test]
    fn every_variant_is_measured_once_a_round_and_none_always_first() {
        let mut order = Vec::new();
        let measured = interleaved(3, &[1, 2, 3], |variant| {
            order.push(variant);
            Ok::<_, ()>(f64::from(variant))
        });
        assert_eq!(measured.unwrap(), [vec![1.0; 3], vec![2.0; 3], vec![3.0; 3]]);
        assert_eq!(order, [1, 2, 3, 2, 3, 1, 3, 1, 2]);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
