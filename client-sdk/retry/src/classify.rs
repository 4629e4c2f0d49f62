//! What an outcome means for the engine: success, a failure with a code, or an error that is not retried.

use std::io;
use std::time::Duration;

use damper_core::Code;
#[cfg(feature = "tonic")]
use damper_core::classify::StatusFields;
#[cfg(feature = "tonic")]
use damper_core::{Failure, Pushback, Verdict, chain as headers};

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
        match damper_core::http::code_of(status) {
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

/// For a body whose error is the status of a response.
#[cfg(feature = "http")]
impl Retryable for http::StatusCode {
    /// As [`Class::of_http`].
    fn class(&self) -> Class {
        Class::of_http(self.as_u16())
    }
}

#[cfg(feature = "tonic")]
impl Retryable for tonic::Status {
    /// As [`Class::of_grpc`]. Not retryable if the server or a service below it asked for no retry.
    fn class(&self) -> Class {
        let Failure { no_more_retry, pushback, .. } = failure_of(self);
        if no_more_retry || pushback == Some(Pushback::Stop) {
            return Class::NotRetryable;
        }
        Class::of_grpc(self.code().into())
    }

    /// Reads `grpc-retry-pushback-ms`.
    fn wait_hint(&self) -> Option<Duration> {
        match failure_of(self).pushback {
            Some(Pushback::After(wait)) => Some(wait),
            Some(Pushback::Stop) | None => None,
        }
    }
}

/// Reads the retry fields of a status.
#[cfg(feature = "tonic")]
fn failure_of(status: &tonic::Status) -> Failure {
    let mut pushbacks = status.metadata().get_all(headers::PUSHBACK).iter();
    let fields = StatusFields {
        grpc_status: None,
        no_more_retry: status.metadata().contains_key(headers::NO_MORE_RETRY),
        pushback: pushbacks.next().map(|value| value.as_bytes()),
        pushback_repeated: pushbacks.next().is_some(),
    };
    match fields.verdict_of_trailers() {
        Verdict::Failure(failure) => failure,
        _ => Failure::new(Code::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "http")]
    #[test]
    fn status_of_http_is_retryable_by_its_class() {
        assert_eq!(http::StatusCode::SERVICE_UNAVAILABLE.class(), Class::TRANSIENT);
        assert_eq!(http::StatusCode::NOT_FOUND.class(), Class::NotRetryable);
    }

    #[cfg(feature = "tonic")]
    #[test]
    fn status_of_grpc_is_retryable_by_code_and_pushback() {
        use tonic::metadata::MetadataMap;

        let status = |field: Option<(&'static str, &'static str)>| {
            let mut metadata = MetadataMap::new();
            if let Some((name, value)) = field {
                metadata.insert(name, value.parse().unwrap());
            }
            tonic::Status::with_metadata(tonic::Code::Unavailable, "", metadata)
        };
        assert_eq!((status(None).class(), status(None).wait_hint()), (Class::TRANSIENT, None));
        assert_eq!(tonic::Status::not_found("").class(), Class::Failed(Code::NotFound));
        let pushed = status(Some(("grpc-retry-pushback-ms", "200")));
        assert_eq!(
            (pushed.class(), pushed.wait_hint()),
            (Class::TRANSIENT, Some(Duration::from_millis(200)))
        );
        for stop in [("grpc-retry-pushback-ms", "-1"), ("damper-no-more-retry", "1")] {
            let status = status(Some(stop));
            assert_eq!((status.class(), status.wait_hint()), (Class::NotRetryable, None), "{stop:?}");
        }
    }

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
