//! Request bodies buffered for retries.
//!
//! A request body is polled without waiting. If it ends within the limit, as that of every unary call does,
//! its chunks are kept. Each attempt gets its own handles on the same chunks, so no server sees a partial or
//! reordered body. A body that has not ended yet is forwarded and copied as it passes, see `arriving`. Any
//! other body is forwarded: the part already read, then the rest.
//!
//! The total for all calls is bounded too; beyond it calls are sent once. A call keeps its chunks until its
//! response begins or it ends. A chunk holds the whole buffer that it was cut from, so a short one is counted
//! with the size of tonic's encode buffer. Above half of the total, short chunks are copied instead.

mod arriving;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::vec;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use self::arriving::Copied;
pub(crate) use self::arriving::{ArrivingRequest, cancelled};

/// Limit of the bytes buffered for all calls.
const MAX_MEMORY: usize = 16 << 20;
/// Size of the buffer into which tonic encodes a message, which a short chunk holds.
const BUFFER: usize = 8 << 10;
/// Bytes in use from which short chunks are copied.
const COPIES_FROM: usize = MAX_MEMORY / 2;
/// Longer chunks are not copied: they waste little of their buffer.
const SHORT: usize = BUFFER / 2;
/// A gRPC message begins with one byte of flags and four of length.
#[cfg(feature = "queue")]
const FRAME: usize = 5;
/// Limit of the chunks per call: chunks can be empty, so bytes alone would not bound them.
const MAX_CHUNKS: usize = 1_024;

/// Bytes buffered for all calls of a runtime.
#[derive(Debug, Default)]
pub(crate) struct ReplayBudget {
    in_use: AtomicUsize,
}

/// Result of [`capture`].
pub(crate) enum CaptureResult {
    /// The complete body is buffered.
    Whole(BufferedRequest),
    /// The body has not ended. The first attempt forwards it; further ones are possible once it is kept.
    Arriving(Body, ArrivingRequest),
    /// The body can be sent once.
    Once(Body),
}

/// A buffered request body.
#[derive(Debug)]
pub(crate) struct BufferedRequest {
    chunks: Chunks,
    /// Bytes reserved for the chunks.
    reserved: usize,
    /// True if the size of the body was known: attempts then announce it, which becomes a `content-length`.
    exact: bool,
    memory: Arc<ReplayBudget>,
}

/// The first chunk is stored inline: almost every body has one chunk.
#[derive(Clone, Debug, Default)]
struct Chunks {
    first: Option<Bytes>,
    more: Vec<Bytes>,
    bytes: usize,
}

/// Buffers a body if it ends within `limit` bytes, without waiting for its end.
pub(crate) fn capture(mut body: Body, limit: u32, memory: &Arc<ReplayBudget>) -> CaptureResult {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let hint = http_body::Body::size_hint(&body);
    if usize::try_from(hint.lower()).is_ok_and(|least| least > limit) {
        return CaptureResult::Once(body);
    }
    let mut chunks = Chunks::default();
    let mut cx = Context::from_waker(Waker::noop());
    let next = loop {
        if chunks.bytes > limit || chunks.len() > MAX_CHUNKS {
            break None;
        }
        match http_body::Body::poll_frame(Pin::new(&mut body), &mut cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(chunk) => chunks.push(chunk),
                Err(other) => break Some(Ok(other)),
            },
            Poll::Ready(Some(Err(error))) => break Some(Err(error)),
            Poll::Ready(None) => {
                let Some(reserved) = memory.reserve_for(&mut chunks) else { break None };
                let exact = hint.exact().is_some();
                let memory = Arc::clone(memory);
                return CaptureResult::Whole(BufferedRequest { chunks, reserved, exact, memory });
            }
            Poll::Pending => {
                let mut copied = Copied::new(limit, hint.exact().is_some(), memory);
                if limit == 0 || !chunks.iter().all(|chunk| copied.push(chunk)) {
                    break None;
                }
                let (body, request) = arriving::forward(chunks.into(), body, copied, hint);
                return CaptureResult::Arriving(body, request);
            }
        }
    };
    if chunks.len() == 0 && next.is_none() {
        return CaptureResult::Once(body);
    }
    let read = chunks.into();
    CaptureResult::Once(Body::new(Resumed { read, next, rest: body }))
}

impl ReplayBudget {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Reserves memory for the chunks and returns its size; `None` if there is not enough.
    fn reserve_for(&self, chunks: &mut Chunks) -> Option<usize> {
        if self.in_use.load(Ordering::Relaxed) >= COPIES_FROM {
            chunks.copy_short_ones();
            return self.reserve(chunks.bytes).then_some(chunks.bytes);
        }
        let held =
            chunks.iter().map(|chunk| if chunk.is_empty() { 0 } else { chunk.len().max(BUFFER) }).sum();
        self.reserve(held).then_some(held)
    }

    fn reserve(&self, bytes: usize) -> bool {
        let reserved = self.in_use.fetch_add(bytes, Ordering::Relaxed);
        let fits = reserved.saturating_add(bytes) <= MAX_MEMORY;
        if !fits {
            self.in_use.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

impl BufferedRequest {
    /// Returns the body for one attempt.
    pub(crate) fn body(&self) -> Body {
        let Chunks { first, more, bytes } = self.chunks.clone();
        Body::new(ReplayedBody { first, more: more.into_iter(), left: bytes, exact: self.exact })
    }

    /// Returns the message of a unary request, without its frame; `None` for a request of several messages or
    /// a compressed one, which its receiver could not read without its headers.
    #[cfg(feature = "queue")]
    pub(crate) fn message(&self) -> Option<Bytes> {
        let mut whole = match (&self.chunks.first, self.chunks.more.as_slice()) {
            (Some(first), []) => first.clone(),
            _ => self.chunks.iter().flatten().copied().collect(),
        };
        let frame = (whole.len() >= FRAME).then(|| whole.split_to(FRAME))?;
        let (flags, length) = frame.split_first()?;
        let length = u32::from_be_bytes(length.try_into().ok()?);
        (*flags == 0 && usize::try_from(length) == Ok(whole.len())).then_some(whole)
    }
}

impl Drop for BufferedRequest {
    fn drop(&mut self) {
        self.memory.in_use.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

impl Chunks {
    fn push(&mut self, chunk: Bytes) {
        self.bytes = self.bytes.saturating_add(chunk.len());
        match self.first {
            None => self.first = Some(chunk),
            Some(_) => self.more.push(chunk),
        }
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.first.iter().chain(&self.more)
    }

    /// Releases the buffers that short chunks were cut from.
    fn copy_short_ones(&mut self) {
        for chunk in self.first.iter_mut().chain(&mut self.more).filter(|chunk| chunk.len() <= SHORT) {
            *chunk = Bytes::copy_from_slice(chunk);
        }
    }
}

impl From<Chunks> for VecDeque<Bytes> {
    fn from(chunks: Chunks) -> Self {
        chunks.first.into_iter().chain(chunks.more).collect()
    }
}

/// The body of one attempt.
struct ReplayedBody {
    first: Option<Bytes>,
    more: vec::IntoIter<Bytes>,
    left: usize,
    exact: bool,
}

impl http_body::Body for ReplayedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let Some(chunk) = this.first.take().or_else(|| this.more.next()) else {
            return Poll::Ready(None);
        };
        self.left = self.left.saturating_sub(chunk.len());
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.more.as_slice().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if self.exact { SizeHint::with_exact(self.left as u64) } else { SizeHint::default() }
    }
}

/// A partly read body: the part read, then the rest.
struct Resumed {
    read: VecDeque<Bytes>,
    next: Option<Result<Frame<Bytes>, Status>>,
    rest: Body,
}

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(chunk) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(next));
        }
        http_body::Body::poll_frame(Pin::new(&mut self.rest), cx)
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.next.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: usize = self.read.iter().map(Bytes::len).sum();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower().saturating_add(read as u64));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read as u64));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http_body_util::Full;

    use super::*;

    /// A buffer as tonic makes for each message, counted until it is dropped.
    struct Buffer(Vec<u8>, Arc<AtomicUsize>);

    impl Buffer {
        fn message(held: &Arc<AtomicUsize>) -> Body {
            held.fetch_add(BUFFER, Ordering::Relaxed);
            let buffer = Bytes::from_owner(Self(vec![0; BUFFER], Arc::clone(held)));
            Body::new(Full::new(buffer.slice(..20)))
        }
    }

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            self.1.fetch_sub(BUFFER, Ordering::Relaxed);
        }
    }

    #[test]
    fn buffered_requests_hold_no_more_memory_than_counted() {
        let (memory, held) = (Arc::default(), Arc::default());
        let kept: Vec<_> = (0..20_000)
            .map(|_| match capture(Buffer::message(&held), 1_024, &memory) {
                CaptureResult::Whole(kept) => kept,
                _ => panic!("twenty bytes fit"),
            })
            .collect();
        assert!(held.load(Ordering::Relaxed) <= memory.in_use(), "{held:?} {memory:?}");
        assert!(memory.in_use() <= MAX_MEMORY);
        drop(kept);
        assert_eq!((memory.in_use(), held.load(Ordering::Relaxed)), (0, 0));
    }
}
