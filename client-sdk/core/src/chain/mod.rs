//! The two flags by which a chain of services retries in one place only.
//!
//! - **Down**, `damper-retry: <n>`: this request is a repeat. A service that receives it sends its own calls
//!   once and passes the flag on: the layer above is the one retrying.
//! - **Up**, `damper-no-more-retry: 1` on an error: a hop below has made the retries that could help. Every
//!   layer above gives up at once and passes the flag on.
//!
//! Requests that other systems mark as repeats count too (`grpc-previous-rpc-attempts`,
//! `x-envoy-attempt-count`), and the flag up is translated for stock gRPC clients (a pushback of -1) and for
//! Envoy (`x-envoy-ratelimited`).
//!
//! With r attempts per layer a chain of m layers sends at most r on the hop nearest the fault and 1 above for
//! fast failures, and i x r - (i - 1) on hop i from the top when answers are lost; never r^i.
//!
//! Source: ByteDance's retry governance (the flags), gRFC A6 (previous attempts, pushback), Envoy's header
//! documentation. Headers are ASCII metadata over plain gRPC; messages are not touched.

pub mod bound;
mod context;

pub use self::context::RequestContext;
pub use crate::headers::{
    BAGGAGE, Baggage, CALL_ID, ENVOY_ATTEMPT_COUNT, ENVOY_PREFIX, ENVOY_RATE_LIMITED, GRACE_MS, HOP_BY_HOP,
    NO_MORE_RETRY, NO_MORE_RETRY_VALUE, PREVIOUS_ATTEMPTS, PUSHBACK, PUSHBACK_STOP_VALUE, RETRY, RepeatMarks,
    Repeater, baggage_with, baggage_without,
};
