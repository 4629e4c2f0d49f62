//! The wall clock of the job store.
//!
//! Due times and expiries are wall times, because jobs outlive processes. Waits use the monotonic clock of
//! tokio, and no wait is longer than a second without another look at the wall clock. So a clock that jumps
//! changes when jobs are due, and no lease.

use std::time::Duration;

use damper_core::Time;
use damper_core::job::Wall;
use tokio::time::Instant;

/// Returns the present time.
pub trait Clock: Send + Sync + 'static {
    /// Returns milliseconds since 1970.
    fn wall(&self) -> Wall;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Wall {
        crate::store::now()
    }
}

/// Returns the time this long before another one; 1970 at the least.
pub(crate) fn before(at: Wall, wait: Duration) -> Wall {
    Wall(at.0.saturating_sub(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
}

/// One moment by all clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For due times.
    pub(crate) wall: Wall,
    /// For the ends of leases.
    pub(crate) instant: Instant,
    /// For the engine: since the server started.
    pub(crate) time: Time,
}
