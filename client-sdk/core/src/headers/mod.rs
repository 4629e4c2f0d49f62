//! Headers of the chain, and the marks of retried requests.

mod baggage;
mod marks;

pub use self::baggage::{BAGGAGE, Baggage, GRACE_MS, baggage_with, baggage_without, is_named};
pub use self::marks::{RepeatMarks, Repeater};

use std::str::FromStr;

/// Down: number of attempts before this one, on this hop or one above.
pub const RETRY: &str = "damper-retry";
/// Up: do not retry this call.
pub const NO_MORE_RETRY: &str = "damper-no-more-retry";
/// The value of [`NO_MORE_RETRY`].
pub const NO_MORE_RETRY_VALUE: &str = "1";
/// gRPC's own: number of attempts before this one, on this hop.
pub const PREVIOUS_ATTEMPTS: &str = "grpc-previous-rpc-attempts";
/// gRPC's own: when to retry, in milliseconds; negative: never.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The value of [`PUSHBACK`] sent with [`NO_MORE_RETRY`].
pub const PUSHBACK_STOP_VALUE: &str = "-1";
/// Envoy's number of attempts, including the first.
pub const ENVOY_ATTEMPT_COUNT: &str = "x-envoy-attempt-count";
/// Envoy does not retry a response with this header.
pub const ENVOY_RATE_LIMITED: &str = "x-envoy-ratelimited";
/// Prefix of the headers of requests through Envoy.
pub const ENVOY_PREFIX: &str = "x-envoy-";

/// Time left for an HTTP request, in the form of `grpc-timeout`.
pub const HTTP_TIMEOUT: &str = "damper-timeout";

/// Equal on all attempts of a call, so that handlers can recognise retries.
pub const CALL_ID: &str = "damper-call";

/// Id of a job. On a request: the job of which it is a delivery. On the failure of a call within the process
/// of the caller: the job that the call has become. No peer's response sets it.
pub const JOB: &str = "damper-job";

/// How a call ended, on its failure within the process of the caller. No peer sends or receives it.
pub const FATE: &str = "damper-fate";

/// Response headers for this hop only. The client layer removes them before the application sees the
/// response, because a handler that passes a status on would otherwise repeat them.
pub const HOP_BY_HOP: [&str; 3] = [NO_MORE_RETRY, PUSHBACK, ENVOY_RATE_LIMITED];

/// Parses a header that consists of digits only.
pub(crate) fn number<N: FromStr>(value: &[u8]) -> Option<N> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
