//! The clock of this machine.

use std::time::{SystemTime, UNIX_EPOCH};

use damper_core::job::Wall;

/// Returns the present time.
pub(crate) fn now() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
