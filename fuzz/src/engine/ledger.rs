//! What the budget is about, in plain lists: every call and every extra attempt with its time.
//!
//! The engine counts in windows of buckets and atomics. Here nothing is forgotten, so that the bound can be held against
//! each decision by itself. It says nothing once the clock went back or the rule changed: what the engine then counts
//! is not in the lists.

use std::time::Duration;

use damper_core::{Budget, Time, WindowShape};

/// The calls that were begun, and the extra attempts that were decided on.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) calls: Vec<Time>,
    pub(super) extra: Vec<Time>,
    /// The clock went back, or the rule changed: the lists do not tell any more.
    pub(super) uneven: bool,
}

impl Ledger {
    /// At every decision there was room for all that had been decided on in the window.
    pub(super) fn check(&self, cap: &Budget, shape: WindowShape) {
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = |time: &Time| time.as_micros() / us(shape.bucket_length);
        for at in &self.extra {
            let last = bucket(at);
            let first = (last + 1).saturating_sub(u64::from(shape.buckets));
            let in_window = |time: &&Time| *time <= at && (first..=last).contains(&bucket(time));
            let extra = self.extra.iter().filter(in_window).count() as u128;
            let calls = self.calls.iter().filter(in_window).count() as u128;
            let by_ratio = calls * u128::from(cap.ratio.bp()) * 1_000_000;
            let by_time = u128::from(cap.min_per_second) * u128::from(us(shape.length())) * 10_000;
            assert!(extra * 10_000_000_000 <= by_ratio + by_time, "{extra} extra attempts of {calls} calls");
        }
    }
}
