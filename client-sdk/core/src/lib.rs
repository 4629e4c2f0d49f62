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

mod call;
pub mod chain;
pub mod endpoints;
pub mod fault;
mod gates;
mod headers;
pub mod lint;
mod outcome;
pub mod policy;
mod random;
mod route;
mod rules;
mod time;

pub use call::{Answer, AttemptKind, Call, CallStart, Finish, Passthrough, SendAttempt, Step, backoff};
pub use fault::{Fault, Faults, Percent, Ratio};
pub use gates::repeat_limit::RepeatLimit;
pub use gates::{breaker, budget, circuit, repeat_limit};
pub use latency::Histogram;
pub use outcome::classify::{Failure, Pushback, Verdict};
pub use outcome::code::{Code, CodeSet};
pub use outcome::fate::{Ending, Fate};
pub use outcome::{classify, failed_call};
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
