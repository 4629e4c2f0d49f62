//! A response body polled inside its request's context: a streaming handler makes calls from there.
//!
//! The end of the stream and the size are the inner body's, so that an answer without a body stays one: an
//! error then is a single frame of headers (Trailers-Only). So is the answer to a refused request.

use std::pin::Pin;
use std::task::{Context as Task, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::reply::ErrorReply;

pin_project! {
    /// A response body through the server layer.
    #[derive(Debug)]
    pub struct ServerBody<B> {
        // None if the request was refused.
        #[pin]
        inner: Option<B>,
        // None if the answer came from outside of the layer.
        reply: Option<ErrorReply>,
    }
}

/// A body without content, as tonic's interceptors need one for the requests that they refuse.
impl<B> Default for ServerBody<B> {
    fn default() -> Self {
        Self { inner: None, reply: None }
    }
}

impl<B> ServerBody<B> {
    pub(super) fn new(inner: B, reply: ErrorReply) -> Self {
        Self { inner: Some(inner), reply: Some(reply) }
    }

    /// That of a refused request.
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
