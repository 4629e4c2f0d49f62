//! Measuring in turn: every round measures each variant once, so that what the machine does meanwhile meets all of
//! them, and a ratio is taken within a round, never across.
//!
//! What is reported is the median of the rounds with the smallest and the largest. Harnesses that measure one
//! variant after the other (criterion, divan) can not do this, and a shared machine drifts by more than the
//! differences that matter here.

use damper_tests::spread::Spread;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
