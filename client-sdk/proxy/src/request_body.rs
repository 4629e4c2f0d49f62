//! The body of a request on its way.
//!
//! hyper reports a stream that its sender has reset with NO_ERROR as the end of the body. To the receiver
//! such a request would look complete, so here it ends with an error, which resets the stream there too. A
//! sender whose connection is lost has cancelled its requests.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use damper_sdk::BoxError;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::failure;

/// The body of a request, which ends only if its sender has ended it.
#[derive(Debug)]
pub(crate) struct RequestBody(Incoming);

impl RequestBody {
    pub(crate) fn new(body: Incoming) -> Self {
        Self(body)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) if failure::reset(&error).is_some() => Some(Err(error.into())),
            None if self.0.is_end_stream() => None,
            Some(Err(_)) | None => Some(Err(h2::Error::from(h2::Reason::CANCEL).into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
