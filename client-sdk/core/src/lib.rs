//! Damper's rule book: everything that decides about repeating a call, and nothing else.
//!
//! The crate is pure. It has no clock, no I/O, no threads and no randomness of its own: the present [`Time`]
//! and random numbers come in as arguments. The client SDK and the simulator are drivers of this
//! one rule book, and every rule can be tested without sleeping.
//!
//! Three nouns carry it:
//! - [`Policy`]: immutable settings; a [`Rule`] binds a checked one to a [`Pattern`], a [`Table`] finds it.
//! - [`RouteState`]: what all calls of one route share (window, latencies, counters), by atomics, no lock.
//! - [`Call`]: one call's decisions, a state machine that answers what happened with a [`Step`].
//!
//! Values are integers (microseconds, basis points). Nothing here panics on any input; arithmetic saturates.
#![deny(clippy::float_arithmetic, clippy::float_cmp)]
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod backoff;
pub mod breaker;
pub mod budget;
mod call;
pub mod chain;
pub mod circuit;
pub mod classify;
mod code;
mod credit;
pub mod deadline;
pub mod endpoints;
mod explain;
pub mod failed_call;
mod fate;
pub mod fault;
pub mod feature;
pub mod guard;
pub mod key;
pub mod kill;
pub mod latency;
pub mod lint;
mod pattern;
pub mod policy;
mod random;
pub mod repeat_limit;
mod route;
mod run;
mod standing;
mod table;
mod time;
mod window;

pub use call::{Answer, AttemptKind, Call, CallStart, Finish, Passthrough, SendAttempt, Step};
pub use classify::{Failure, Pushback, Verdict};
pub use code::{Code, CodeSet};
pub use explain::{Bound, Explanation, ShadowedRule};
pub use fate::{Ending, Fate};
pub use fault::{Fault, Faults, Percent, Ratio};
pub use guard::{Ceiling, Guard};
pub use key::RouteKey;
pub use kill::Kill;
pub use latency::Histogram;
pub use pattern::{MethodPart, Part, Pattern};
pub use policy::{
    Backoff, BreakerMode, Budget, Chain, CircuitBreaker, Growth, Hedge, HedgeDelay, Increment as BackoffStep,
    Jitter, Mode, OverMax, Policy, Retry, RetryBreaker, StopWhen, Waits,
};
pub use repeat_limit::RepeatLimit;
pub use route::{Counters, MAX_ROUTES, OTHER_METHOD, Route, RouteState};
pub use standing::GateStatus;
pub use table::{Rule, Table, Tightened};
pub use time::Time;
pub use window::{Counts, Window, WindowShape};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
