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

use std::sync::atomic::{AtomicBool, Ordering};

use crate::time::Time;

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

/// Headers of an answer that speak to this hop only: the client layer takes them off before the application
/// sees the answer, because a handler that passes a status on would otherwise speak for the hop below.
pub const HOP_BY_HOP: [&str; 3] = [NO_MORE_RETRY, PUSHBACK, ENVOY_RATE_LIMITED];

/// The headers of a request that may mark it as a repeat, as they arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks<'a> {
    /// [`RETRY`]
    pub retry: Option<&'a [u8]>,
    /// [`PREVIOUS_ATTEMPTS`]
    pub previous_attempts: Option<&'a [u8]>,
    /// [`ENVOY_ATTEMPT_COUNT`]
    pub envoy_attempt_count: Option<&'a [u8]>,
}

impl Marks<'_> {
    /// The flag this request carries, if it is a repeat: how many sends came before.
    ///
    /// A `damper-retry` that is no number still says that the request is a repeat.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        if let Some(value) = self.retry {
            return Some(number(value).unwrap_or(1).max(1));
        }
        let previous = self.previous_attempts.and_then(number).filter(|previous| *previous >= 1);
        let envoy = self.envoy_attempt_count.and_then(number).filter(|count| *count > 1);
        previous.or(envoy.map(|count| count - 1))
    }
}

/// What the calls made in serving one request share.
///
/// Created by the server layer from the request; every client layer called within reads it, and the server
/// layer asks it when the answer is an error.
#[derive(Debug, Default)]
pub struct Context {
    flag: Option<u32>,
    deadline: Option<Time>,
    no_more_retry: AtomicBool,
}

impl Context {
    /// The context of a request with this flag and deadline.
    #[must_use]
    pub fn new(flag: Option<u32>, deadline: Option<Time>) -> Self {
        Self { flag, deadline, no_more_retry: AtomicBool::new(false) }
    }

    /// The flag the request carried: how many sends came before it; none for a first send.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        self.flag
    }

    /// Until when the request must be answered.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Notes that a call made in serving the request must not be repeated by the layers above.
    pub fn mark_no_more_retry(&self) {
        self.no_more_retry.store(true, Ordering::Relaxed);
    }

    /// True if an error answer to the request must carry the flag up.
    #[must_use]
    pub fn no_more_retry(&self) -> bool {
        self.no_more_retry.load(Ordering::Relaxed)
    }
}

/// The number that a header consists of; none unless it is digits and nothing else.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_three_marks_makes_a_request_a_repeat() {
        let check = |retry: Option<&str>, previous: Option<&str>, envoy: Option<&str>, expected| {
            let marks = Marks {
                retry: retry.map(str::as_bytes),
                previous_attempts: previous.map(str::as_bytes),
                envoy_attempt_count: envoy.map(str::as_bytes),
            };
            assert_eq!(marks.flag(), expected, "{retry:?} {previous:?} {envoy:?}");
        };
        check(None, None, None, None);
        check(Some("2"), None, None, Some(2));
        check(Some("0"), None, None, Some(1));
        check(Some("x"), None, None, Some(1));
        check(None, Some("0"), None, None);
        check(None, Some("1"), None, Some(1));
        check(None, Some("-1"), None, None);
        check(None, Some("+1"), None, None);
        check(None, None, Some("1"), None);
        check(None, None, Some("3"), Some(2));
        check(None, Some("junk"), Some("2"), Some(1));
        check(Some("5"), Some("1"), Some("9"), Some(5));
    }
}
