//! Budget: a cap on retries and hedges together, relative to the calls started.
//!
//! ```text
//! retries + hedges in the window <= ratio x calls started in the window + min_per_second x window
//! ```
//!
//! An extra attempt reserves first: it counts itself, checks the cap, and takes itself back if the cap is
//! exceeded. So the cap holds under any interleaving of threads. Unsent attempts are refunded. The arithmetic
//! uses integers: 0.15, 0.35 and 0.6 are exact.
//!
//! Sources: the retry budgets of Finagle (a share of requests and a minimum per second) and Envoy.

use crate::policy::Budget;
use crate::time::window::{Counts, Window, WindowShape};
use crate::time::{Time, micros};

/// Recent calls and extra attempts of a route.
#[derive(Debug)]
pub struct BudgetWindow {
    /// Successes count calls started, failures extra attempts.
    window: Window,
}

/// An admitted extra attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    at: Time,
}

impl BudgetWindow {
    /// Returns an unused budget.
    #[must_use]
    pub fn new(shape: WindowShape) -> Self {
        Self { window: Window::new(shape) }
    }

    /// Counts a started call.
    pub fn count_call(&self, now: Time) {
        self.window.count_success(now);
    }

    /// Reserves an extra attempt; `None` if the budget is used up.
    pub fn reserve(&self, budget: &Budget, now: Time) -> Option<Reservation> {
        self.window.count_failure(now);
        let reservation = Reservation { at: now };
        if allows(budget, self.window.shape(), self.window.counts(now)) {
            return Some(reservation);
        }
        self.refund(reservation);
        None
    }

    /// Returns true if the budget admits an extra attempt.
    #[must_use]
    pub fn has_room(&self, budget: &Budget, now: Time) -> bool {
        let mut counts = self.window.counts(now);
        counts.failures = counts.failures.saturating_add(1);
        allows(budget, self.window.shape(), counts)
    }

    /// Gives back a reservation that was not sent.
    pub fn refund(&self, reservation: Reservation) {
        self.window.take_back_failure(reservation.at);
    }
}

/// Returns true if the extra attempts of the window, including the requested one, are within the budget.
fn allows(budget: &Budget, shape: WindowShape, counts: Counts) -> bool {
    const SECOND_US: u128 = 1_000_000;
    let Counts { failures: extra, successes: calls } = counts;
    let by_ratio = u128::from(calls) * u128::from(budget.ratio.bp()) * SECOND_US;
    let by_time = u128::from(budget.min_per_second) * u128::from(micros(shape.length())) * 10_000;
    u128::from(extra) * 10_000 * SECOND_US <= by_ratio + by_time
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::fault::Ratio;

    const NOW: Time = Time::from_micros(5_000_000);

    fn budget(bp: u32, min_per_second: u32) -> Budget {
        Budget { ratio: Ratio::from_bp(bp), min_per_second }
    }

    fn spending(calls: u64) -> BudgetWindow {
        let spending = BudgetWindow::new(WindowShape::default());
        (0..calls).for_each(|_| spending.count_call(NOW));
        spending
    }

    fn granted(spending: &BudgetWindow, budget: &Budget) -> usize {
        std::iter::from_fn(|| spending.reserve(budget, NOW)).take(10_000).count()
    }

    #[test]
    fn ratios_act_as_written() {
        for (bp, calls, expected) in [(1_500, 100, 15), (3_500, 100, 35), (6_000, 10, 6), (2_000, 4, 0)] {
            assert_eq!(granted(&spending(calls), &budget(bp, 0)), expected, "{bp}");
        }
    }

    #[test]
    fn minimum_is_per_second_of_the_window() {
        assert_eq!(granted(&spending(0), &budget(2_000, 1)), 10);
        assert_eq!(granted(&spending(50), &budget(2_000, 3)), 40);
        let short = WindowShape { buckets: 2, bucket_length: Duration::from_millis(100) };
        assert_eq!(granted(&BudgetWindow::new(short), &budget(100, 5)), 1);
        assert_eq!(granted(&BudgetWindow::new(short), &budget(100, 4)), 0);
    }

    #[test]
    fn refunded_attempts_can_be_spent_again() {
        let (spending, budget) = (spending(10), budget(1_000, 0));
        let reservation = spending.reserve(&budget, NOW).unwrap();
        assert_eq!(spending.reserve(&budget, NOW), None);
        spending.refund(reservation);
        assert!(spending.reserve(&budget, NOW).is_some());
    }

    #[test]
    fn refund_is_limited_and_not_applied_to_a_later_lap() {
        let (spending, budget) = (spending(10), budget(1_000, 0));
        let reservation = spending.reserve(&budget, NOW).unwrap();
        (0..3).for_each(|_| spending.refund(reservation));
        assert!(spending.reserve(&budget, NOW).is_some());
        assert_eq!(spending.reserve(&budget, NOW), None);
        // A lap later the bucket holds other reservations.
        let later = NOW + Duration::from_secs(10);
        (0..10).for_each(|_| spending.count_call(later));
        assert!(spending.reserve(&budget, later).is_some());
        spending.refund(reservation);
        assert_eq!(spending.reserve(&budget, later), None);
    }

    #[test]
    fn blocked_attempt_spends_nothing() {
        let (spending, budget) = (spending(10), budget(1_000, 0));
        assert!(spending.reserve(&budget, NOW).is_some());
        (0..100).for_each(|_| assert_eq!(spending.reserve(&budget, NOW), None));
        (0..10).for_each(|_| spending.count_call(NOW));
        assert!(spending.reserve(&budget, NOW).is_some());
    }

    #[test]
    fn spent_budget_recovers_after_one_window() {
        let (spending, budget) = (spending(0), budget(2_000, 1));
        assert_eq!(granted(&spending, &budget), 10);
        let later = NOW + Duration::from_secs(10);
        assert!(spending.reserve(&budget, later).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn cap_holds_from_many_threads(bp in 100_u32..=10_000, calls in 0_u64..400, min in 0_u32..4) {
            let (spending, budget) = (spending(calls), budget(bp, min));
            let granted = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (spending, granted) = (&spending, &granted);
                    scope.spawn(move || for n in 0..300 {
                        if let Some(reservation) = spending.reserve(&budget, NOW) {
                            if (n + thread) % 7 == 0 {
                                spending.refund(reservation);
                            } else {
                                granted.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            let cap = u64::from(bp) * calls / 10_000 + u64::from(min) * 10;
            prop_assert!(granted.into_inner() <= cap);
        }

        #[test]
        fn decision_never_overflows(bp in 100_u32..=10_000, min in 0_u32..=1000, extra: u64, calls: u64) {
            let counts = Counts { failures: extra, successes: calls };
            allows(&budget(bp, min), WindowShape { buckets: 60, bucket_length: Duration::from_secs(10) }, counts);
        }
    }
}
