//! The two flags that keep retries of a chain in one place.
//!
//! - **Down**, `damper-retry: <n>`: this request is a retry. A service that receives it does not retry its
//!   own calls and passes the flag on: the layer above retries.
//! - **Up**, `damper-no-more-retry: 1` on an error: a hop below has made the useful retries. Every layer
//!   above gives up at once and passes the flag on.
//!
//! Marks of other systems count too (`grpc-previous-rpc-attempts`, `x-envoy-attempt-count`). The flag
//! `damper-no-more-retry` is translated for plain gRPC clients (a pushback of -1) and for Envoy
//! (`x-envoy-ratelimited`).
//!
//! With r attempts per layer, a chain of m layers sends at most r attempts on the hop nearest the fault and 1
//! above for fast failures, and i x r - (i - 1) on hop i from the top if responses are lost; never r^i.
//!
//! Source: ByteDance's retry governance (the flags), gRFC A6 (previous attempts, pushback), Envoy's header
//! documentation. Headers are ASCII metadata over plain gRPC; messages are not changed.

pub mod bound;
mod context;

pub use self::context::RequestContext;
pub use crate::headers::{
    BAGGAGE, Baggage, CALL_ID, ENVOY_ATTEMPT_COUNT, ENVOY_PREFIX, ENVOY_RATE_LIMITED, FATE, GRACE_MS,
    HOP_BY_HOP, HTTP_TIMEOUT, JOB, NO_MORE_RETRY, NO_MORE_RETRY_VALUE, PREVIOUS_ATTEMPTS, PUSHBACK,
    PUSHBACK_STOP_VALUE, RETRY, RepeatMarks, Repeater, baggage_with, baggage_without, is_named,
};
