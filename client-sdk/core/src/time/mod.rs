//! Time of the engine: passed in by the driver, never read from a clock.
//!
//! A `Time` is a number of microseconds since an origin that the driver chose, such as the start of the
//! process or of a simulation. Drivers read their clock once per event. Nothing is assumed about its
//! progress: it may stand still, and threads may pass slightly different times.

pub mod deadline;
pub(crate) mod window;

use std::fmt;
use std::num::NonZero;
use std::ops::Add;
use std::time::Duration;

/// Microseconds since the driver's origin.
///
/// The number is stored plus one, so that an optional time takes no more memory: a call has a dozen of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZero<u64>);

impl Time {
    /// The driver's origin.
    pub const ZERO: Self = Self(NonZero::<u64>::MIN);

    /// Returns the instant this many microseconds after the origin; the last representable one on overflow.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(NonZero::<u64>::MIN.saturating_add(us))
    }

    /// Returns the instant this long after the origin; the last representable one on overflow.
    #[must_use]
    pub fn after_origin(elapsed: Duration) -> Self {
        Self::from_micros(micros(elapsed))
    }

    /// Returns the microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0.get().saturating_sub(1)
    }

    /// Returns the time since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(micros(wait)))
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Time({})", self.as_micros())
    }
}

/// Returns the whole microseconds of a duration; saturates.
#[must_use]
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
