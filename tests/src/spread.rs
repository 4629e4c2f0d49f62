//! What several measurements of one thing come to: the middle and the ends, or the value at a share of them.
//!
//! The lab takes it over the runs of a scenario, the benchmarks over their rounds. Few values, and none of them is to
//! be explained away: so the median and both ends, no mean and no deviation. The names are those in `bench.json`.

use serde::{Deserialize, Serialize};

/// The middle and the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the values are not above; midway between the two in the middle of an even number.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of values in any order; all zero if there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
        let last = sorted.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(sorted.len() / 2)), min: at(0), max: at(last) }
    }

    /// Of what is counted, not measured: it is the same each time.
    #[must_use]
    pub fn exactly(count: f64) -> Self {
        Self { median: count, min: count, max: count }
    }

    /// The median, and the ends where so many digits tell them apart.
    #[must_use]
    pub fn shown(self, digits: usize) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(|value| format!("{value:.digits$}"));
        if min == max { median } else { format!("{median} ({min}..{max})") }
    }
}

/// The value that this share (0 to 1) of the sorted values does not exceed, by the nearest rank; 0 if there are none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_the_extremes() {
        let spread = Spread::of([3.0, 1.0, 2.0, 10.0]);
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 10.0 });
        assert_eq!(Spread::of([7.0]), Spread::exactly(7.0));
        assert_eq!(Spread::of([3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Spread::of([]), Spread::exactly(0.0));
    }

    #[test]
    fn ends_are_shown_where_the_digits_tell_them_apart() {
        let spread = Spread { median: 1.25, min: 1.24, max: 1.26 };
        assert_eq!([2, 0].map(|digits| spread.shown(digits)), ["1.25 (1.24..1.26)", "1"]);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
