//! Bodies whose trailers are edited on their way, and the fields that are.
//!
//! Data passes unread. An error within a gRPC response becomes trailers with a status, unless it is a reset
//! of the stream, which is passed on with its code: see `failure`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use damper_sdk::{BoxError, has_grpc_type};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use pin_project_lite::pin_project;
use tonic::Status;

use crate::failure::{self, Reset};

/// A callee asked for no more retries; in place of it within the process, where the client layer takes that
/// flag off.
static STOP: HeaderName = HeaderName::from_static("damper-proxy-stop");
static NO_MORE_RETRY: HeaderName = HeaderName::from_static("damper-no-more-retry");
static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
static FATE: HeaderName = HeaderName::from_static("damper-fate");
const YES: HeaderValue = HeaderValue::from_static("1");
/// The pushback that stops the retries of a stock gRPC client.
const NEVER: HeaderValue = HeaderValue::from_static("-1");

/// Edits the headers and trailers of a response.
pub(crate) trait Edit: Send + 'static {
    fn edit(&mut self, fields: &mut HeaderMap);
}

/// Keeps the flag of a callee for [`LeavePushback`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepStop {
    pub(crate) external: bool,
}

impl Edit for KeepStop {
    fn edit(&mut self, fields: &mut HeaderMap) {
        fields.remove(&STOP);
        if fields.contains_key(&NO_MORE_RETRY) && !self.external {
            fields.insert(&STOP, YES);
        }
    }
}

/// The body of a response to a caller or the service.
pub(crate) type BoxedBody = UnsyncBoxBody<Bytes, Reset>;

/// Returns a body for a response made here.
pub(crate) fn no_body() -> BoxedBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Leaves a pushback of -1 on an error whose call must not be repeated: the service's own gRPC client may
/// have a retry policy. `stopped` is called for each.
pub(crate) struct LeavePushback<F>(pub(crate) F);

impl<F: FnMut() + Send + 'static> Edit for LeavePushback<F> {
    fn edit(&mut self, fields: &mut HeaderMap) {
        let was_flagged = fields.remove(&STOP).is_some();
        let report = fields.contains_key(&FATE).then(|| Status::from_header_map(fields)).flatten();
        let is_final =
            report.is_some_and(|status| damper_sdk::fate(&status).is_some_and(|call| call.is_final()));
        fields.remove(&FATE);
        if was_flagged || is_final {
            fields.insert(&PUSHBACK, NEVER);
            (self.0)();
        }
    }
}

/// Removes the pushback that the service has copied from a call to its response: it was for that call. The
/// server layer adds it again where the flag is set.
pub(crate) fn drop_copied_pushback(fields: &mut HeaderMap) {
    if fields.get(&PUSHBACK) == Some(&NEVER) {
        fields.remove(&PUSHBACK);
    }
}

pin_project! {
    /// A response body whose trailers are edited.
    pub(crate) struct Edited<B, E> {
        #[pin]
        body: B,
        edit: E,
        is_grpc: bool,
        // True for a response of headers alone, and once an error was turned into trailers.
        has_ended: bool,
    }
}

/// Edits the headers of a response, and its trailers once they arrive. A response of headers alone has ended
/// then: its stream may be reset later, with the rest of its request.
pub(crate) fn edited<B: Body, E: Edit>(response: Response<B>, mut edit: E) -> Response<Edited<B, E>> {
    let mut response = response;
    edit.edit(response.headers_mut());
    let is_grpc = has_grpc_type(response.headers());
    let has_ended = response.body().is_end_stream();
    response.map(|body| Edited { body, edit, is_grpc, has_ended })
}

impl<B, E> Body for Edited<B, E>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    E: Edit,
{
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        let this = self.project();
        if *this.has_ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(this.body.poll_frame(cx)) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    this.edit.edit(trailers);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) if *this.is_grpc => {
                *this.has_ended = true;
                let trailers = failure::trailers(error.into());
                Some(trailers.map(|mut trailers| {
                    this.edit.edit(&mut trailers);
                    Frame::trailers(trailers)
                }))
            }
            Some(Err(error)) => Some(Err(Reset::of(error.into()))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// As [`edited`], with the type of the body erased.
pub(crate) fn answer<B, E>(response: Response<B>, edit: E) -> Response<BoxedBody>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    E: Edit,
{
    edited(response, edit).map(BodyExt::boxed_unsync)
}

/// Returns true for a gRPC request. Others are forwarded and never repeated.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && has_grpc_type(request.headers())
}
