//! Wall-clock time. The times of calls are those of `damper_retry`'s clock.

use std::time::SystemTime;

pub(crate) use damper_retry::driver::{Clock, Timer};

/// Milliseconds since 1970 by the wall clock; 0 before.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
