//! Retries for any async call: backoff, time limits, a retry breaker, hedges, stateful retries, listeners and
//! statistics.
//!
//! ```
//! use std::io;
//! use std::time::Duration;
//!
//! use damper_retry::{Backoff, Jitter, Retry};
//!
//! # async fn fetch(_attempt: u32) -> io::Result<String> { Ok("page".to_owned()) }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let fetch_page = Retry::named("catalog/fetch")
//!     .max_attempts(5)
//!     .backoff(Backoff::exponential(Duration::from_millis(50)).jitter(Jitter::Full))
//!     .attempt_timeout(Duration::from_secs(1))
//!     .timeout(Duration::from_secs(5))
//!     .retry_if(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset)
//!     .build()?;
//! let page = fetch_page.call(async |attempt| fetch(attempt.number()).await).await?;
//! # assert_eq!(page, "page");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! A [`Retry`] is made once and used often. All its calls share a budget: in the last 10 s at most one extra
//! attempt per five calls, and ten per second in addition. [`Builder`] has more gates, and all settings.
//!
//! Without a predicate an error is retried only if its type implements [`Retryable`]. Predicates, hints and
//! listeners are added to the builder or to the handle. [`Error`] has the last error, and how the call ended.
//!
//! | for | use |
//! |---|---|
//! | a body that borrows what it captures | [`Retry::call`] |
//! | a body that changes what it captures | [`Retry::call_mut`] |
//! | several attempts at once | [`Retry::call_hedged`] |
//! | threads without a runtime | [`Retry::call_blocking`] |
//! | messages of a queue | [`Retry::stateful`] |
//! | a call without a handle | [`retry()`] |
//! | tower services | `RetryLayer`, feature `tower` |
//!
//! Feature flags: `tower` has `RetryLayer`; `http` and `tonic` implement [`Retryable`] for `http::StatusCode`
//! and `tonic::Status`.
//!
//! The crate has no retry rule of its own. `damper-core` decides; the same engine governs gRPC calls in
//! `damper-sdk`, where the policies come from a control plane.

mod attempt;
mod backoff;
mod classify;
mod clock;
mod error;
mod events;
mod handle;
mod handlers;
#[cfg(feature = "tower")]
mod layer;
mod registry;
mod source;
mod stateful;
mod timer;

pub use attempt::Attempt;
pub use backoff::Backoff;
pub use classify::{Class, Retryable};
pub use damper_core::{
    BreakerMode, Budget, CallOptions, CircuitBreaker, Code, Ending, Fate, Faults, Hedge, HedgeDelay, Jitter,
    Mode, Policy, Ratio, RetryBreaker, Stop, StopWhen, WindowShape,
};
pub use error::{Error, Failed, NotAnswered, Reason};
pub use events::{AttemptEnded, CallEnded, Event, EventKind, Listener, LogRetries, Stats};
pub use handle::builder::Builder;
pub use handle::future::{Body, Calling};
pub use handle::once::{Once, retry};
pub use handle::{BoxRetry, Retry};
pub use handlers::{BoxHandlers, ByType, Handlers};
#[cfg(feature = "tower")]
pub use layer::{ByClone, CopyRequest, RetryLayer, RetryService};
pub use registry::Registry;
pub use stateful::{BoxStateful, Stateful};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(doctest, feature = "tonic"))]
#[doc = include_str!("../../../docs/retry-anything.md")]
mod retry_anything {}

/// What a driver of the handles needs; no part of the stable interface.
#[doc(hidden)]
pub mod driver {
    pub use crate::clock::Clock;
    pub use crate::handlers::Assessment;
    #[cfg(feature = "tower")]
    pub use crate::layer::Sending;
    pub use crate::source::{Begun, Local, Source, Watch};
    pub use crate::timer::Timer;
}
