//! What an outcome means for the engine: success, a failure with a code, or an error that is not retried.

use std::io;
use std::time::Duration;

use damper_core::{Code, http};

/// Meaning of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The attempt succeeded.
    Success,
    /// The attempt failed. Retried if the policy retries the code: by default UNAVAILABLE,
    /// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED and ABORTED, under a rule UNAVAILABLE.
    Failed(Code),
    /// An error that shows the callee to be alive, and that a retry would repeat. Never retried.
    NotRetryable,
}

impl Class {
    /// A failure that policies retry by default.
    pub const TRANSIENT: Self = Self::Failed(Code::Unavailable);

    /// Returns the meaning of an HTTP status. 408, 425, 429, 502, 503 and 504 are transient; 500 is INTERNAL,
    /// 501 UNIMPLEMENTED and those above UNKNOWN, which no policy retries by default.
    #[must_use]
    pub fn of_http(status: u16) -> Self {
        match http::code_of(status) {
            Some(code) => Self::Failed(code),
            None if status >= 400 => Self::NotRetryable,
            None => Self::Success,
        }
    }

    /// Returns the meaning of a gRPC status code, such as `tonic::Code as i32`. The policy has the codes that
    /// are retried; permanent ones such as NOT_FOUND are not by default. Unknown numbers are UNKNOWN.
    #[must_use]
    pub fn of_grpc(code: i32) -> Self {
        match u32::try_from(code).ok().and_then(Code::from_number).unwrap_or(Code::Unknown) {
            Code::Ok => Self::Success,
            code => Self::Failed(code),
        }
    }
}

/// An error type that knows which of its values are transient. Calls without any predicate use it.
pub trait Retryable {
    /// Returns the meaning of the error.
    fn class(&self) -> Class;

    /// Returns the wait that the callee asked for.
    fn wait_hint(&self) -> Option<Duration> {
        None
    }
}

impl Retryable for io::Error {
    /// Lost and refused connections are UNAVAILABLE, timeouts DEADLINE_EXCEEDED.
    fn class(&self) -> Class {
        use io::ErrorKind as Kind;
        match self.kind() {
            Kind::TimedOut => Class::Failed(Code::DeadlineExceeded),
            Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::ResourceBusy
            | Kind::Interrupted
            | Kind::WouldBlock
            | Kind::UnexpectedEof => Class::TRANSIENT,
            _ => Class::NotRetryable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_peers_have_classes() {
        assert_eq!(Class::of_http(204), Class::Success);
        assert_eq!(Class::of_http(404), Class::NotRetryable);
        assert_eq!(Class::of_http(429), Class::TRANSIENT);
        assert_eq!(Class::of_http(500), Class::Failed(Code::Internal));
        assert_eq!(Class::of_grpc(0), Class::Success);
        assert_eq!(Class::of_grpc(14), Class::TRANSIENT);
        assert_eq!(Class::of_grpc(5), Class::Failed(Code::NotFound));
        assert_eq!(
            (Class::of_grpc(-1), Class::of_grpc(99)),
            (Class::Failed(Code::Unknown), Class::Failed(Code::Unknown))
        );
    }
}
