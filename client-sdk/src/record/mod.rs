//! Record of a call: spans and times, and the attempts of a call that fails.

pub(crate) mod report;
pub(crate) mod telemetry;
pub(crate) mod trail;
