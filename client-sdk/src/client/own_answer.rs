//! Answers that the engine gave in a server's place, as a server would have said them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};

use crate::headers;

/// What the application is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnAnswer {
    /// The call's time is over: DEADLINE_EXCEEDED.
    TimedOut,
    /// The circuit breaker is open: UNAVAILABLE.
    CircuitOpen,
}

impl OwnAnswer {
    /// Trailers that end an answer, also one which had begun.
    pub(crate) fn trailers(self) -> HeaderMap {
        // The numbers are gRPC's.
        let (status, message) = match self {
            Self::TimedOut => ("4", "the time limit of the call is over (ended by damper)"),
            Self::CircuitOpen => ("14", "the circuit breaker is open: damper did not send the call"),
        };
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert(&headers::GRPC_STATUS, HeaderValue::from_static(status));
        trailers.insert(&headers::GRPC_MESSAGE, HeaderValue::from_static(message));
        trailers
    }

    /// An answer that is nothing but trailers.
    pub(crate) fn response<B>(self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.headers_mut() = self.trailers();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}
