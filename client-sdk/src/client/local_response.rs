//! Responses made by Damper in place of a server, in the form that a server would use.

use std::fmt::Write as _;
use std::time::Duration;

use damper_core::kill::TimedKill;
use damper_core::{Time, fault::Millis};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};

use crate::headers;

/// Reason for the response.
#[derive(Clone, Debug)]
pub(crate) enum LocalResponse {
    /// The deadline of the call has passed: DEADLINE_EXCEEDED.
    TimedOut,
    /// The circuit breaker is open: UNAVAILABLE.
    CircuitOpen,
    /// The budget blocks a call that begins with a retry: UNAVAILABLE.
    Blocked,
    /// A kill rejects the call: UNAVAILABLE, with the reason.
    Killed(HeaderValue),
}

impl LocalResponse {
    /// Returns the response to a call that a kill rejects; `by` is `None` if the kill has just ended.
    pub(crate) fn killed(by: Option<&TimedKill>, now: Time) -> Self {
        let Some(held) = by else { return Self::Killed(HeaderValue::from_static(KILLED)) };
        let left = held.remaining(now);
        let left = Millis(Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0)));
        let text = format!("{KILLED}; for another {left}: {}", held.kill.reason());
        Self::Killed(HeaderValue::try_from(percent_encoded(&text)).expect("visible ASCII and blanks"))
    }

    /// Returns the trailers, also for a response that has begun.
    pub(crate) fn trailers(self) -> HeaderMap {
        // Status numbers of gRPC.
        let (status, message) = match self {
            Self::TimedOut => {
                let over = "deadline of the call exceeded (ended by damper)";
                ("4", HeaderValue::from_static(over))
            }
            Self::CircuitOpen => {
                let open = "circuit breaker open; damper did not send the call";
                ("14", HeaderValue::from_static(open))
            }
            Self::Blocked => {
                let blocked = "budget of retries used up; damper did not send the call";
                ("14", HeaderValue::from_static(blocked))
            }
            Self::Killed(message) => ("14", message),
        };
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert(&headers::GRPC_STATUS, HeaderValue::from_static(status));
        trailers.insert(&headers::GRPC_MESSAGE, message);
        trailers
    }

    /// Returns a trailers-only response.
    pub(crate) fn response<B>(self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.headers_mut() = self.trailers();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

const KILLED: &str = "calls rejected by a kill switch; damper did not send the call";

/// Percent-encodes a text for `grpc-message` ("Percent-Encoded" in gRPC over HTTP/2).
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => write!(encoded, "%{byte:02X}").expect("a string takes all"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use damper_core::{Kill, Pattern};

    use super::*;

    #[test]
    fn a_rejected_call_gets_the_reason_and_the_time_left() {
        let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
        let reason = "100% caf\u{e9}\r\nx: y".to_owned();
        let kill = Arc::new(Kill::new(pattern, true, reason, 1).unwrap());
        let until = Time::from_micros(61_500_000);
        let answer = LocalResponse::killed(Some(&TimedKill { kill, until }), Time::from_micros(2_000_000));
        let trailers = answer.trailers();
        assert_eq!(trailers[&headers::GRPC_STATUS], "14");
        assert_eq!(
            trailers[&headers::GRPC_MESSAGE],
            "calls rejected by a kill switch; damper did not send the call; for another 60s: 100%25 caf%C3%A9%0D%0Ax: y"
        );
        let unnamed = LocalResponse::killed(None, Time::ZERO).trailers();
        assert_eq!(unnamed[&headers::GRPC_MESSAGE], KILLED);
    }
}
