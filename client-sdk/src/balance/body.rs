//! Response body that reports the outcome of its request from the trailers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::in_flight::InFlight;
use crate::outcome::verdict;

/// Response body of a [`Balanced`](super::Balanced) channel.
#[derive(Debug)]
pub struct BalancedBody {
    inner: Incoming,
    in_flight: InFlight,
    /// Responses to other requests than gRPC show nothing of their endpoint, except by a broken connection.
    is_grpc: bool,
}

impl BalancedBody {
    pub(super) fn new(inner: Incoming, in_flight: InFlight, is_grpc: bool) -> Self {
        Self { inner, in_flight, is_grpc }
    }
}

impl Body for BalancedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref().filter(|_| self.is_grpc) {
                    self.in_flight.ended(&verdict::of_trailers(Some(trailers), false));
                }
            }
            Some(Err(error)) => self.in_flight.failed(error),
            None if self.is_grpc => self.in_flight.ended(&verdict::of_trailers(None, false)),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
