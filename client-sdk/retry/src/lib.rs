//! Retries for any async call.

mod attempt;
mod backoff;
mod builder;
mod classify;
mod clock;
mod error;
mod events;
mod future;
mod handlers;
mod retry;
mod session;
mod source;
mod timer;

pub use attempt::Attempt;
pub use backoff::Backoff;
pub use builder::Builder;
pub use classify::{Class, Retryable};
pub use damper_core::{
    Budget, CircuitBreaker, Code, Ending, Fate, Faults, Hedge, HedgeDelay, Jitter, Mode, Policy, RetryBreaker,
    Stop,
};
pub use error::{Error, Failed, NotAnswered, Reason};
pub use events::{AttemptEnded, CallEnded, Event, EventKind, Listener, LogRetries, Stats};
pub use future::{Body, Calling};
pub use handlers::{ByType, Handlers};
pub use retry::Retry;

/// What a driver of the handles needs; no part of the stable interface.
#[doc(hidden)]
pub mod driver {
    pub use crate::clock::Clock;
    pub use crate::source::{Begun, Local, Source, Watch};
    pub use crate::timer::Timer;
}
