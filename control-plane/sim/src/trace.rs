//! A simulation request by request: what one at the top caused on each hop, whenever that came.
//!
//! [`Outcome`](crate::Outcome) books an attempt in the second in which it was sent, as a dashboard does. Where the
//! cause matters, as in a comparison with measurements that number their requests, ask for this.

use damper_core::Time;

/// One request at the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Start, in microseconds after the beginning.
    pub begun_us: u64,
    /// End: response or timeout. `None`: not within a minute after the last start.
    pub ended_us: Option<u64>,
    /// True if it was answered with OK.
    pub succeeded: bool,
    /// Handler arrivals on its behalf, by hop from the top down. Includes requests failed by a fault or a
    /// full queue, but not those rejected by the retry limit.
    pub arrivals: Vec<u32>,
}

impl Trace {
    pub(crate) fn begun(at: Time, hops: usize) -> Self {
        Self { begun_us: at.as_micros(), ended_us: None, succeeded: false, arrivals: vec![0; hops] }
    }

    pub(crate) fn ended(&mut self, at: Time, succeeded: bool) {
        (self.ended_us, self.succeeded) = (Some(at.as_micros()), succeeded);
    }
}
