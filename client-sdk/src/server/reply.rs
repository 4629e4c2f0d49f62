//! The flag up: what an error answer says about repeating the request.
//!
//! With the flag go its translations: a pushback of -1 for stock gRPC clients, and `x-envoy-ratelimited` if
//! the request came through Envoy. They are inserted, never appended, and never put on a successful answer.

use damper_core::chain;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};

use crate::context::Context;
use crate::headers;

const YES: HeaderValue = HeaderValue::from_static(chain::NO_MORE_RETRY_VALUE);
const STOP: HeaderValue = HeaderValue::from_static(chain::PUSHBACK_STOP_VALUE);
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
const REFUSED: HeaderValue = HeaderValue::from_static(
    "repeat limit: too many of the requests to this method are repeats; this one was not served",
);
const RATE_LIMITED: HeaderValue = HeaderValue::from_static("true");

/// The answer to one request.
#[derive(Debug)]
pub(super) struct Reply {
    context: Context,
    envoy: bool,
}

impl Reply {
    pub(super) fn new(context: Context, envoy: bool) -> Self {
        Self { context, envoy }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The answer to a repeat that is not served: an error that is nothing but headers, of the request's kind
    /// of gRPC, with the flag.
    pub(super) fn refusal(&self, request: &HeaderMap) -> HeaderMap {
        let content_type = request.get(CONTENT_TYPE);
        let content_type = content_type.filter(|value| value.as_bytes().starts_with(GRPC.as_bytes()));
        let mut answer = HeaderMap::with_capacity(6);
        answer.insert(CONTENT_TYPE, content_type.cloned().unwrap_or(GRPC));
        answer.insert(&headers::GRPC_STATUS, UNAVAILABLE);
        answer.insert(&headers::GRPC_MESSAGE, REFUSED);
        self.context.chain().mark_no_more_retry();
        self.flag(&mut answer);
        answer
    }

    /// Adds the flag to headers or trailers that carry an error, if a call in serving the request asked for it.
    pub(super) fn flag(&self, fields: &mut HeaderMap) {
        let status = headers::bytes(fields, &headers::GRPC_STATUS);
        let failed = status.is_some_and(|status| status != b"0");
        if !failed || !self.context.chain().no_more_retry() {
            return;
        }
        fields.insert(&headers::NO_MORE_RETRY, YES);
        fields.insert(&headers::PUSHBACK, STOP);
        if self.envoy {
            fields.insert(&headers::ENVOY_RATE_LIMITED, RATE_LIMITED);
        }
    }
}
