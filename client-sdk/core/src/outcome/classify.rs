//! Classification of the response to one attempt.
//!
//! A verdict is derived from the response's headers and trailers or from the transport's error, as received,
//! never from a flattened status. No decision depends on the timing of packets.
//!
//! - `grpc-status` in the first headers is final and does not commit, whether or not the stream ends there.
//!   Headers without it commit: the response has begun, and the attempt cannot be retried any more.
//! - If the server provably has not processed the request (a refused stream, a GOAWAY that excludes it), the
//!   attempt is [`Verdict::Unprocessed`]. If the connection failed before the request was written, it is
//!   [`Verdict::Unsent`].
//!
//! Sources: the gRPC HTTP/2 protocol and its sections "HTTP to gRPC status mapping" and "Errors" (RST codes),
//! gRFC A6 (pushback, transparent retries).

use std::time::Duration;

use crate::headers;
use crate::outcome::code::Code;

/// Result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Status OK.
    Success,
    /// Error status, or no response.
    Failure(Failure),
    /// A local timer ended the attempt before a response.
    TimedOut,
    /// The server's application provably has not processed the request.
    Unprocessed,
    /// The request provably never left this process.
    Unsent,
    /// Another part of this process rejected the request; the callee was not involved.
    Local,
}

impl Verdict {
    /// Returns the code that counts for the attempt.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Success => Code::Ok,
            Self::Failure(failure) => failure.code,
            Self::TimedOut => Code::DeadlineExceeded,
            Self::Unprocessed | Self::Unsent => Code::Unavailable,
            Self::Local => Code::ResourceExhausted,
        }
    }

    /// Returns the verdict of a response that had begun: then the server has processed the request.
    #[must_use]
    pub const fn of_begun(self) -> Self {
        match self {
            Self::Unprocessed | Self::Unsent => Self::Failure(Failure::new(Code::Unavailable)),
            other => other,
        }
    }
}

/// A failed attempt, with its retry hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Status code.
    pub code: Code,
    /// `damper-no-more-retry` was set: a hop below gave up.
    pub no_more_retry: bool,
    /// When the server allows a retry.
    pub pushback: Option<Pushback>,
}

/// When the server allows a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushback {
    /// After exactly this time.
    After(Duration),
    /// Never: the value was negative, malformed or present twice.
    Stop,
}

impl Failure {
    /// Returns a failure without retry hints.
    #[must_use]
    pub const fn new(code: Code) -> Self {
        Self { code, no_more_retry: false, pushback: None }
    }
}

/// Fields of headers or trailers that carry a status.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusFields<'a> {
    /// `grpc-status`
    pub grpc_status: Option<&'a [u8]>,
    /// [`headers::NO_MORE_RETRY`] is present.
    pub no_more_retry: bool,
    /// The first [`headers::PUSHBACK`].
    pub pushback: Option<&'a [u8]>,
    /// [`headers::PUSHBACK`] is present more than once.
    pub pushback_repeated: bool,
}

impl StatusFields<'_> {
    /// Returns the verdict of response headers; `None` if they only begin the response and so commit the
    /// attempt.
    #[must_use]
    pub fn verdict_of_headers(&self, http_status: u16) -> Option<Verdict> {
        match (self.grpc_status, http_status) {
            (Some(_), _) => Some(self.verdict()),
            (None, 200) => None,
            (None, status) => Some(self.failure(code_of_http(status))),
        }
    }

    /// Returns the verdict of trailers, or of a response without any.
    ///
    /// A missing status is UNKNOWN, as in gRPC clients.
    #[must_use]
    pub fn verdict_of_trailers(&self) -> Verdict {
        self.verdict()
    }

    fn verdict(&self) -> Verdict {
        match self.grpc_status.map_or(Code::Unknown, code_of_status) {
            Code::Ok => Verdict::Success,
            code => self.failure(code),
        }
    }

    fn failure(&self, code: Code) -> Verdict {
        let pushback = self
            .pushback
            .map(|value| if self.pushback_repeated { Pushback::Stop } else { parse_pushback(value) });
        Verdict::Failure(Failure { code, no_more_retry: self.no_more_retry, pushback })
    }
}

/// Error of an attempt without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportFault {
    /// No connection. An ordinary failure: the next attempt waits for its backoff.
    NotConnected,
    /// The peer sent GOAWAY or REFUSED_STREAM: it does not process the request.
    Unprocessed,
    /// The request was not written.
    Unsent,
    /// This process rejected the request, to protect itself.
    Local,
    /// The peer reset the stream with this HTTP/2 error code.
    Reset(u32),
    /// A timer of the transport ended it.
    TimedOut,
    /// The connection was lost while the attempt was in flight, or another error.
    Lost,
}

impl TransportFault {
    /// Returns the verdict of the fault.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        const REFUSED_STREAM: u32 = 7;
        match self {
            Self::Unprocessed | Self::Reset(REFUSED_STREAM) => Verdict::Unprocessed,
            Self::NotConnected | Self::Lost => Verdict::Failure(Failure::new(Code::Unavailable)),
            Self::Unsent => Verdict::Unsent,
            Self::Local => Verdict::Local,
            Self::TimedOut => Verdict::TimedOut,
            Self::Reset(reason) => Verdict::Failure(Failure::new(code_of_reset(reason))),
        }
    }
}

/// Returns the code of a `grpc-status` value; UNKNOWN if it does not follow the protocol.
#[must_use]
pub fn code_of_status(value: &[u8]) -> Code {
    match value {
        // The most frequent value.
        b"0" => Code::Ok,
        _ if has_leading_zero(value) => Code::Unknown,
        _ => headers::number(value).and_then(Code::from_number).unwrap_or(Code::Unknown),
    }
}

/// gRPC writes numbers without leading zeros.
fn has_leading_zero(value: &[u8]) -> bool {
    value.len() > 1 && value.starts_with(b"0")
}

fn code_of_http(status: u16) -> Code {
    match status {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

fn code_of_reset(reason: u32) -> Code {
    match reason {
        8 => Code::Cancelled,
        11 => Code::ResourceExhausted,
        12 => Code::PermissionDenied,
        0..=6 | 9 | 10 => Code::Internal,
        _ => Code::Unknown,
    }
}

fn parse_pushback(value: &[u8]) -> Pushback {
    let text = std::str::from_utf8(value).ok();
    let digits = text.filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits {
        // Values that overflow exceed any limit.
        Some(text) if !has_leading_zero(value) => {
            Pushback::After(text.parse().map_or(Duration::MAX, Duration::from_millis))
        }
        _ => Pushback::Stop,
    }
}

/// Returns true if this response header carries retry hints for this hop only.
#[must_use]
pub fn is_hop_by_hop(name: &str) -> bool {
    headers::HOP_BY_HOP.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(status: &str) -> StatusFields<'_> {
        StatusFields { grpc_status: Some(status.as_bytes()), ..StatusFields::default() }
    }

    fn failed(code: Code) -> Verdict {
        Verdict::Failure(Failure::new(code))
    }

    #[test]
    fn status_in_first_headers_is_final_and_its_absence_commits() {
        assert_eq!(fields("14").verdict_of_headers(200), Some(failed(Code::Unavailable)));
        assert_eq!(fields("0").verdict_of_headers(200), Some(Verdict::Success));
        assert_eq!(fields("5").verdict_of_headers(503), Some(failed(Code::NotFound)));
        assert_eq!(StatusFields::default().verdict_of_headers(200), None);
    }

    #[test]
    fn http_errors_without_a_status_map_as_grpc_maps_them() {
        let table = [
            (400, Code::Internal),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::Unimplemented),
            (429, Code::Unavailable),
            (500, Code::Unknown),
            (502, Code::Unavailable),
            (503, Code::Unavailable),
            (504, Code::Unavailable),
            (302, Code::Unknown),
            (201, Code::Unknown),
        ];
        for (status, code) in table {
            assert_eq!(StatusFields::default().verdict_of_headers(status), Some(failed(code)), "{status}");
        }
    }

    #[test]
    fn status_that_is_missing_or_not_a_number_is_unknown() {
        assert_eq!(StatusFields::default().verdict_of_trailers(), failed(Code::Unknown));
        for bad in ["", "x", "-1", "17", "99999999999", "0x0", " 0", "+0", "014", "00"] {
            assert_eq!(fields(bad).verdict_of_trailers(), failed(Code::Unknown), "{bad:?}");
        }
    }

    #[test]
    fn pushback_is_exact_or_a_stop() {
        let check = |value: &str, repeated, expected| {
            let fields = StatusFields {
                pushback: Some(value.as_bytes()),
                pushback_repeated: repeated,
                ..fields("14")
            };
            let Verdict::Failure(failure) = fields.verdict_of_trailers() else { panic!("{value}") };
            assert_eq!(failure.pushback, Some(expected), "{value:?}");
        };
        check("0", false, Pushback::After(Duration::ZERO));
        check("250", false, Pushback::After(Duration::from_millis(250)));
        check("99999999999999999999999", false, Pushback::After(Duration::MAX));
        for bad in ["-1", "", "1.5", "abc", "+5", " 5", "5ms", "007", "00"] {
            check(bad, false, Pushback::Stop);
        }
        check("250", true, Pushback::Stop);
    }

    #[test]
    fn resets_map_as_grpc_maps_them() {
        let check =
            |reason, verdict| assert_eq!(TransportFault::Reset(reason).verdict(), verdict, "{reason}");
        check(0, failed(Code::Internal));
        check(7, Verdict::Unprocessed);
        check(8, failed(Code::Cancelled));
        check(11, failed(Code::ResourceExhausted));
        check(12, failed(Code::PermissionDenied));
        check(2, failed(Code::Internal));
        check(13, failed(Code::Unknown));
    }
}
