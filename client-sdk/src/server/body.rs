//! Response body of the server layer, polled in the context of its request: streaming handlers make calls
//! there.
//!
//! End of stream and size are those of the inner body, so a response without a body stays one: an error is
//! then a single frame of headers (Trailers-Only). The same applies to the response to a rejected request.

use std::pin::Pin;
use std::task::{Context as Task, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::reply::ErrorReply;

pin_project! {
    /// Response body of the server layer.
    #[derive(Debug)]
    pub struct ServerBody<B> {
        // `None` if the request was rejected.
        #[pin]
        inner: Option<B>,
        // `None` if the response was made outside the layer.
        reply: Option<ErrorReply>,
    }
}

/// An empty body. tonic's interceptors need it for the requests that they reject.
impl<B> Default for ServerBody<B> {
    fn default() -> Self {
        Self { inner: None, reply: None }
    }
}

impl<B> ServerBody<B> {
    pub(super) fn new(inner: B, reply: ErrorReply) -> Self {
        Self { inner: Some(inner), reply: Some(reply) }
    }

    /// Returns the body of a rejected request.
    pub(super) fn empty(reply: ErrorReply) -> Self {
        Self { inner: None, reply: Some(reply) }
    }
}

impl<B: Body> Body for ServerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let (Some(inner), Some(reply)) = (this.inner.as_pin_mut(), this.reply) else {
            return Poll::Ready(None);
        };
        let mut poll = reply.context().sync_scope(|| inner.poll_frame(cx));
        if let Poll::Ready(Some(Ok(frame))) = &mut poll
            && let Some(trailers) = frame.trailers_mut()
        {
            reply.flag(trailers);
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
