//! The retry engine of Damper: all decisions about retries, hedges and rejected calls.
//!
//! The crate is pure. It has no clock, I/O, threads or randomness of its own: [`Time`] and random numbers are
//! arguments. The client SDK and the simulator drive the same engine, and all rules can be tested without
//! sleeping.
//!
//! Three types matter most:
//! - [`Policy`]: immutable settings. A [`Rule`] binds a checked policy to a [`Pattern`]; a [`Table`] finds
//!   the rule of a route.
//! - [`RouteState`]: the state that all calls of a route share (window, latencies, counters), in atomics
//!   without a lock.
//! - [`Call`]: the decisions of one call, a state machine that answers each event with a [`Step`].
//!
//! Values are integers (microseconds, basis points). Nothing panics on any input; arithmetic saturates.
#![deny(clippy::float_arithmetic, clippy::float_cmp)]
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod call;
pub mod chain;
pub mod endpoints;
pub mod fault;
mod gates;
mod headers;
pub mod job;
pub mod lint;
mod outcome;
pub mod policy;
mod random;
mod route;
mod rules;
mod time;

pub use call::{
    Answer, AttemptKind, Call, CallOptions, CallStart, ClassCount, Earlier, Finish, Hints, Passthrough,
    SendAttempt, Step, Stop, backoff,
};
pub use fault::{Fault, Faults, Percent, Ratio};
pub use gates::repeat_limit::RepeatLimit;
pub use gates::{breaker, budget, circuit, repeat_limit};
pub use latency::Histogram;
pub use outcome::classify::{Failure, Pushback, Verdict};
pub use outcome::code::{Code, CodeSet};
pub use outcome::fate::{Ending, Fate};
pub use outcome::{classify, failed_call, http};
pub use policy::{
    Backoff, BreakerMode, Budget, Chain, CircuitBreaker, Growth, Hedge, HedgeDelay, Increment as BackoffStep,
    Jitter, Mode, OverMax, Policy, Retry, RetryBreaker, StopWhen, Waits, feature,
};
pub use route::{Counters, GateStatus, MAX_ROUTES, OTHER_METHOD, Route, RouteState, latency};
pub use rules::explain::{Bound, Explanation, ShadowedRule};
pub use rules::guard::{Ceiling, Guard};
pub use rules::key::RouteKey;
pub use rules::kill::Kill;
pub use rules::pattern::{MethodPart, Part, Pattern};
pub use rules::table::{Rule, Table, Tightened};
pub use rules::{guard, key, kill};
pub use time::window::{Counts, Window, WindowShape};
pub use time::{Time, deadline};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
