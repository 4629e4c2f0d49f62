//! `stop_when`: no further attempts of slow requests, or while too few attempts succeed.
//!
//! Both conditions need `min_samples` recent attempts, and end by time alone when fewer are left in the
//! window.

use std::time::Duration;

use crate::policy::StopWhen;
use crate::time::Time;
use crate::time::window::Window;

use super::latency::Recent;

impl StopWhen {
    /// Returns true if a request took longer than the percentile of recent successes.
    pub(crate) fn is_slow(&self, recent: &Recent, took: Duration, now: Time) -> bool {
        let usual = self.latency_above_percentile.and_then(|at| recent.percentile(now, at, self.min_samples));
        usual.is_some_and(|usual| took > usual)
    }

    /// Returns true if too few recent attempts succeeded.
    pub(crate) fn has_few_successes(&self, attempts: &Window, now: Time) -> bool {
        self.success_rate_below.is_some_and(|least| {
            let counts = attempts.counts(now);
            let total = counts.total();
            let share = u128::from(counts.successes) * 10_000;
            let is_known = total >= u64::from(self.min_samples);
            is_known && share < u128::from(total) * u128::from(least.hundredths())
        })
    }
}
