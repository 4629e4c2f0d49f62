//! The short wait for the body of a request before its call begins.
//!
//! The client layer repeats a call only if its request is there as a whole when the call begins. In a process
//! it is; behind a socket the body arrives a moment after the head. This is a step in between: once the SDK
//! keeps the bytes that pass, the wait is gone. A request that is not whole in time is sent as it is, and
//! never repeated. A streaming call that sends nothing begins up to [`WITHIN`] later.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// Time for the body of a small request.
const WITHIN: Duration = Duration::from_millis(20);
/// Limit of a request that is waited for.
const MAX_BYTES: usize = 64 << 10;

/// A body of which the first frames were read.
pub(crate) struct Begun<B = Incoming> {
    first: VecDeque<Result<Frame<Bytes>, hyper::Error>>,
    /// `None` once it has ended.
    rest: Option<B>,
}

/// Reads a body until it ends, is too long or the time is over.
pub(crate) async fn begin<B>(body: B) -> Begun<B>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let mut begun = Begun { first: VecDeque::new(), rest: Some(body) };
    // Frames that were read stay in `begun` when the time is over.
    let _ = tokio::time::timeout(WITHIN, begun.read()).await;
    begun
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Begun<B> {
    async fn read(&mut self) {
        let mut bytes = 0;
        while let Some(body) = self.rest.as_mut().filter(|body| !body.is_end_stream()) {
            let Some(frame) = body.frame().await else { break };
            bytes += frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
            let is_broken = frame.is_err();
            self.first.push_back(frame);
            if is_broken || bytes > MAX_BYTES {
                return;
            }
        }
        self.rest = None;
    }
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for Begun<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(frame) = self.first.pop_front() {
            return Poll::Ready(Some(frame));
        }
        match &mut self.rest {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let frames = self.first.iter().filter_map(|frame| frame.as_ref().ok()?.data_ref());
        let first = frames.map(Bytes::len).sum::<usize>() as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(first.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
            hint.set_upper(upper);
        }
        hint
    }
}
