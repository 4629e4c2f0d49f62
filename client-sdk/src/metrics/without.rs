//! What stands in the places of the histograms where the feature is off: nothing, which the compiler removes.

use damper_core::{AttemptKind, Time};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Detail(());

#[derive(Debug)]
pub(crate) struct OfCallee;

impl OfCallee {
    pub(crate) fn new(_callee: &str, _detail: Detail) -> Self {
        Self
    }

    pub(crate) fn call_begins(&self, _method: &str, _now: Time) -> CallTimes {
        CallTimes
    }
}

#[derive(Debug)]
pub(crate) struct CallTimes;

impl CallTimes {
    pub(crate) fn sent(&mut self, _kind: AttemptKind, _now: Time) -> AttemptTimes {
        AttemptTimes
    }

    pub(crate) fn attempt_ended(&mut self, _now: Time) {}

    pub(crate) fn ended(&mut self, _now: Time) {}
}

#[derive(Debug)]
pub(crate) struct AttemptTimes;

impl AttemptTimes {
    pub(crate) fn none() -> Self {
        Self
    }

    pub(crate) fn are_kept(&self) -> bool {
        false
    }

    pub(crate) fn ended(&mut self, _now: Time) {}
}
