//! The headers of the chain's flags, and the marks of repeats that requests carry.

mod baggage;
mod marks;

pub use self::baggage::{BAGGAGE, Baggage, GRACE_MS, baggage_with, baggage_without};
pub use self::marks::{RepeatMarks, Repeater};

use std::str::FromStr;

/// Down: how many sends came before this one, on this hop or one above.
pub const RETRY: &str = "damper-retry";
/// Up: do not repeat this call.
pub const NO_MORE_RETRY: &str = "damper-no-more-retry";
/// The value of [`NO_MORE_RETRY`].
pub const NO_MORE_RETRY_VALUE: &str = "1";
/// gRPC's own: how many attempts came before this one, on this hop.
pub const PREVIOUS_ATTEMPTS: &str = "grpc-previous-rpc-attempts";
/// gRPC's own: when to retry, in milliseconds; negative = not.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The value of [`PUSHBACK`] that goes with [`NO_MORE_RETRY`].
pub const PUSHBACK_STOP_VALUE: &str = "-1";
/// Envoy's count of sends, the first included.
pub const ENVOY_ATTEMPT_COUNT: &str = "x-envoy-attempt-count";
/// Envoy does not retry an answer with this header.
pub const ENVOY_RATE_LIMITED: &str = "x-envoy-ratelimited";
/// Requests with a header of this prefix came through Envoy.
pub const ENVOY_PREFIX: &str = "x-envoy-";

/// Equal on all attempts of a call: a key by which handlers can tell repeats.
pub const CALL_ID: &str = "damper-call";

/// Headers of an answer that speak to this hop only: the client layer takes them off before the application
/// sees the answer, because a handler that passes a status on would otherwise speak for the hop below.
pub const HOP_BY_HOP: [&str; 3] = [NO_MORE_RETRY, PUSHBACK, ENVOY_RATE_LIMITED];

/// The number that a header consists of; none unless it is digits and nothing else.
pub(crate) fn number<N: FromStr>(value: &[u8]) -> Option<N> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
