//! Retry flag of error responses.
//!
//! The flag is sent with its translations: a pushback of -1 for stock gRPC clients, and `x-envoy-ratelimited`
//! if the request came through Envoy. They are inserted, never appended, and only on errors. At the edge only
//! the translations are sent, as the flag has no meaning for other clients.

use std::sync::Arc;

use damper_core::chain::Repeater;
use damper_core::{Code, Time, chain, classify};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::context::Context;
use crate::headers;
use crate::record::report;
use crate::routes::Runtime;

const YES: HeaderValue = HeaderValue::from_static(chain::NO_MORE_RETRY_VALUE);
const STOP: HeaderValue = HeaderValue::from_static(chain::PUSHBACK_STOP_VALUE);
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
/// PERMISSION_DENIED, UNIMPLEMENTED and UNAUTHENTICATED: responses that do not prove that a method exists.
const NO_METHOD: [&[u8]; 3] = [b"7", b"12", b"16"];
const REFUSED: HeaderValue =
    HeaderValue::from_static("repeat limit: too many requests to this method are retries; request rejected");
const RATE_LIMITED: HeaderValue = HeaderValue::from_static("true");

/// The response to one request.
#[derive(Debug)]
pub(super) struct ErrorReply {
    context: Context,
    envoy: bool,
    edge: bool,
    /// Set for a request to an unknown method.
    unknown: Option<Box<Unknown>>,
}

/// A request to an unknown method. The response decides which counter it belongs to.
#[derive(Debug)]
pub(super) struct Unknown {
    pub(super) engine: Arc<Runtime>,
    pub(super) method: String,
    pub(super) repeated_by: Option<Repeater>,
    pub(super) now: Time,
    pub(super) is_served: bool,
}

impl Drop for Unknown {
    fn drop(&mut self) {
        let Self { engine, method, repeated_by, now, is_served } = self;
        engine.methods().settled(method, *repeated_by, *now, *is_served);
    }
}

impl ErrorReply {
    pub(super) fn new(context: Context, envoy: bool, edge: bool, unknown: Option<Box<Unknown>>) -> Self {
        Self { context, envoy, edge, unknown }
    }

    /// Notes the beginning of the response. The method is served, unless any name can get this response.
    pub(super) fn begins(&mut self, http_status: StatusCode, fields: &HeaderMap) {
        if let Some(mut unknown) = self.unknown.take() {
            let status = headers::bytes(fields, &headers::GRPC_STATUS);
            unknown.is_served =
                http_status == StatusCode::OK && !status.is_some_and(|status| NO_METHOD.contains(&status));
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the response to a rejected retry: an error with the flag, in headers only, of the request's
    /// content type.
    pub(super) fn refusal(&self, request: &HeaderMap) -> HeaderMap {
        let content_type = request.get(CONTENT_TYPE);
        let content_type = content_type.filter(|value| value.as_bytes().starts_with(GRPC.as_bytes()));
        let mut answer = HeaderMap::with_capacity(6);
        answer.insert(CONTENT_TYPE, content_type.cloned().unwrap_or(GRPC));
        answer.insert(&headers::GRPC_STATUS, UNAVAILABLE);
        answer.insert(&headers::GRPC_MESSAGE, REFUSED);
        self.context.chain().mark_final();
        self.flag(&mut answer);
        answer
    }

    /// Adds the flag to headers or trailers with an error that must not be retried.
    pub(super) fn flag(&self, fields: &mut HeaderMap) {
        let status = headers::bytes(fields, &headers::GRPC_STATUS);
        let code = status.map_or(Code::Ok, classify::code_of_status);
        if code == Code::Ok {
            return;
        }
        // The report stays in the process.
        if !report::take_no_more_retry(fields, code, &self.context) {
            return;
        }
        if !self.edge {
            fields.insert(&headers::NO_MORE_RETRY, YES);
        }
        fields.insert(&headers::PUSHBACK, STOP);
        if self.envoy {
            fields.insert(&headers::ENVOY_RATE_LIMITED, RATE_LIMITED);
        }
    }
}
