//! The answer to a call that the engine ended: DEADLINE_EXCEEDED, as a server would have said it.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};

use crate::headers;

/// gRPC's number of DEADLINE_EXCEEDED.
const STATUS: HeaderValue = HeaderValue::from_static("4");
const MESSAGE: HeaderValue = HeaderValue::from_static("the time limit of the call is over (ended by damper)");

/// Trailers that end an answer which had begun.
pub(crate) fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(&headers::GRPC_STATUS, STATUS);
    trailers.insert(&headers::GRPC_MESSAGE, MESSAGE);
    trailers
}

/// An answer that is nothing but trailers.
pub(crate) fn response<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.headers_mut() = trailers();
    let content_type = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
