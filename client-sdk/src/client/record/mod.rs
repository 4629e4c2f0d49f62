//! Record of a call: spans and times, and the attempts of a call that fails.

pub(super) mod telemetry;
pub(super) mod trail;
