//! Channel to a replica that removes status details.
//!
//! tonic panics on status details that are not base64 (`Status::from_header_map`), so any peer could end a
//! process that aborts on panics. The stream has no use for details: they are removed from headers and
//! trailers before tonic reads them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::{Channel, Error};
use tower_service::Service;

use crate::headers;

/// A channel whose responses have no status details.
#[derive(Clone, Debug)]
pub(crate) struct SafeChannel(pub(crate) Channel);

/// Body of such a response.
#[derive(Debug)]
pub(crate) struct SafeBody(Body);

impl Service<Request<Body>> for SafeChannel {
    type Response = Response<SafeBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<SafeBody>, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            take_off(answer.headers_mut());
            Ok(answer.map(SafeBody))
        })
    }
}

impl http_body::Body for SafeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut poll = Pin::new(&mut self.0).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut poll
            && let Some(trailers) = frame.trailers_mut()
        {
            take_off(trailers);
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

fn take_off(fields: &mut HeaderMap) {
    fields.remove(&headers::DETAILS);
}
