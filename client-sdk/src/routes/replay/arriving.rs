//! Requests that arrive while their first attempt forwards them.
//!
//! ```text
//! body of the first attempt --polls--> rest of the request --copies--> kept request --> further attempts
//! call, once that attempt failed --'
//! ```
//!
//! The rest of the request has one reader at a time: the first attempt, then the call. Bytes are copied as
//! they pass, so a kept request never holds the buffers of its transport; its own are counted. An attempt
//! that loses the rest to the call fails: its callee sees a reset, never a short request that looks complete.
//!
//! The rest is polled outside the lock, because it is the application's code.

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::{BufferedRequest, Chunks, ReplayBudget};

/// Size of the first buffer. Each further one is as large as all before it.
const FIRST_BUFFER: usize = 4 << 10;

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

/// The call's side of a request that arrives.
#[derive(Debug)]
pub(crate) struct ArrivingRequest(Arc<Shared>);

/// The body of the first attempt.
#[derive(Debug)]
pub(super) struct ForwardedBody {
    /// Chunks that were read, and copied, before the attempt began.
    read: VecDeque<Bytes>,
    rest: Rest,
    has_ended: bool,
    /// Size that is left.
    size: SizeHint,
}

/// The part of the request that was not read before the first attempt began.
#[derive(Debug)]
enum Rest {
    Copied(Arc<Shared>),
    /// It is no longer copied; what the copy needed is freed.
    Forwarded(Body),
}

#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The rest of the request; `None` while it is polled and after its end.
    rest: Option<Body>,
    copy: Copy,
    /// The call reads the rest.
    is_taken: bool,
    attempt: Option<Waker>,
    call: Option<Waker>,
}

#[derive(Debug)]
enum Copy {
    Growing(Copied),
    Whole(BufferedRequest),
    /// It is too long, cannot be kept, or is not needed.
    Over,
}

/// The part of a request that has passed.
#[derive(Debug)]
pub(super) struct Copied {
    request: BufferedRequest,
    last: BytesMut,
    /// Space in the last buffer.
    room: usize,
    /// Bytes that may follow.
    left: usize,
}

/// Returns the error with which the transport resets a stream.
pub(crate) fn cancelled() -> Status {
    // The transport finds the reason in the error.
    Status::from_error(Box::new(h2::Error::from(h2::Reason::CANCEL)))
}

/// Returns the body of the first attempt and the call's side.
pub(super) fn forward(
    read: VecDeque<Bytes>,
    rest: Body,
    copied: Copied,
    size: SizeHint,
) -> (Body, ArrivingRequest) {
    let state =
        State { rest: Some(rest), copy: Copy::Growing(copied), is_taken: false, attempt: None, call: None };
    let shared = Arc::new(Shared(Mutex::new(state)));
    let call = ArrivingRequest(Arc::clone(&shared));
    (Body::new(ForwardedBody { read, rest: Rest::Copied(shared), has_ended: false, size }), call)
}

impl ArrivingRequest {
    /// Ready when the request is kept, or with `None` when it will not be. If `takes_over`, the call reads
    /// the rest from here on, and the first attempt fails.
    pub(crate) fn poll(&mut self, takes_over: bool, cx: &mut Context<'_>) -> Poll<Option<BufferedRequest>> {
        let woken = {
            let mut state = self.0.lock();
            state.call.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            let begins = takes_over && !mem::replace(&mut state.is_taken, takes_over);
            state.attempt.take_if(|_| begins)
        };
        woken.into_iter().for_each(Waker::wake);
        loop {
            let is_taken = {
                let mut state = self.0.lock();
                match mem::replace(&mut state.copy, Copy::Over) {
                    Copy::Whole(request) => return Poll::Ready(Some(request)),
                    Copy::Over => return Poll::Ready(None),
                    growing @ Copy::Growing(_) => state.copy = growing,
                }
                state.is_taken
            };
            if !is_taken {
                return Poll::Pending;
            }
            ready!(self.0.poll_rest(cx).1);
        }
    }
}

impl Drop for ArrivingRequest {
    /// Gives back what was copied. The first attempt continues without a copy, unless the call read the rest.
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let copy = mem::replace(&mut state.copy, Copy::Over);
        let rest = if state.is_taken { state.rest.take() } else { None };
        drop(state);
        drop((copy, rest));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and copies the next frame. Returns the rest too if it is no longer copied and has not ended.
    /// Pending if the other side polls it right now.
    fn poll_rest(&self, cx: &mut Context<'_>) -> (Option<Body>, Polled) {
        let Some(mut rest) = self.lock().rest.take() else { return (None, Poll::Pending) };
        let polled = Pin::new(&mut rest).poll_frame(cx);
        let mut state = self.lock();
        let has_ended = match &polled {
            Poll::Pending => false,
            Poll::Ready(Some(Ok(frame))) => {
                state.copy(frame);
                rest.is_end_stream()
            }
            Poll::Ready(Some(Err(_))) => {
                state.copy = Copy::Over;
                true
            }
            Poll::Ready(None) => true,
        };
        if has_ended {
            state.end();
        }
        let is_over = matches!(state.copy, Copy::Over);
        let kept = if has_ended || is_over { Some(rest) } else { state.rest.replace(rest) };
        drop(state);
        (kept.filter(|_| !has_ended), polled)
    }
}

impl State {
    fn copy(&mut self, frame: &Frame<Bytes>) {
        let Copy::Growing(copied) = &mut self.copy else { return };
        // Trailers cannot be sent again.
        if !frame.data_ref().is_some_and(|chunk| copied.push(chunk)) {
            self.copy = Copy::Over;
        }
    }

    fn end(&mut self) {
        self.copy = match mem::replace(&mut self.copy, Copy::Over) {
            Copy::Growing(copied) => Copy::Whole(copied.whole()),
            settled => settled,
        };
    }
}

impl Copied {
    pub(super) fn new(limit: usize, exact: bool, memory: &Arc<ReplayBudget>) -> Self {
        let memory = Arc::clone(memory);
        let request = BufferedRequest { chunks: Chunks::default(), reserved: 0, exact, memory };
        Self { request, last: BytesMut::new(), room: 0, left: limit }
    }

    /// Copies a chunk. Returns false if it is too long or there is no memory. An empty one counts as a byte:
    /// bytes alone would not bound their number.
    #[must_use]
    pub(super) fn push(&mut self, mut chunk: &[u8]) -> bool {
        let Some(left) = self.left.checked_sub(chunk.len().max(1)) else { return false };
        self.left = left;
        while !chunk.is_empty() {
            if self.room == 0 && !self.grow(chunk.len()) {
                return false;
            }
            let (now, later) = chunk.split_at(chunk.len().min(self.room));
            self.last.extend_from_slice(now);
            self.room -= now.len();
            chunk = later;
        }
        true
    }

    fn grow(&mut self, needed: usize) -> bool {
        let most = needed.saturating_add(self.left);
        let size = FIRST_BUFFER.max(self.request.reserved).max(needed).min(most);
        if !self.request.memory.reserve(size) {
            return false;
        }
        self.request.reserved += size;
        self.close_last();
        (self.last, self.room) = (BytesMut::with_capacity(size), size);
        true
    }

    fn close_last(&mut self) {
        if !self.last.is_empty() {
            self.request.chunks.push(mem::take(&mut self.last).freeze());
        }
    }

    fn whole(mut self) -> BufferedRequest {
        self.close_last();
        self.request
    }
}

impl ForwardedBody {
    /// Returns the next frame of the rest.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Polled {
        let shared = match &mut self.rest {
            Rest::Copied(shared) => shared,
            Rest::Forwarded(rest) => return Pin::new(rest).poll_frame(cx),
        };
        let (own, polled) = shared.poll_rest(cx);
        let mut state = shared.lock();
        let (is_taken, has_rest) = (state.is_taken, state.rest.is_some());
        let is_settled = !matches!(state.copy, Copy::Growing(_));
        let woken = state.call.take_if(|_| is_settled || is_taken);
        if polled.is_pending() {
            state.attempt.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        if is_taken {
            // The call has the frame.
            return Poll::Ready(Some(Err(cancelled())));
        }
        self.has_ended = polled.is_ready() && own.is_none() && !has_rest;
        if let Some(own) = own {
            self.rest = Rest::Forwarded(own);
        }
        polled
    }

    fn is_taken(&self) -> bool {
        matches!(&self.rest, Rest::Copied(shared) if shared.lock().is_taken)
    }
}

impl http_body::Body for ForwardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        if self.has_ended && self.read.is_empty() {
            return Poll::Ready(None);
        }
        if self.is_taken() {
            return Poll::Ready(Some(Err(cancelled())));
        }
        let polled = match self.read.pop_front() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
            None => self.poll_rest(cx),
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let sent = frame.data_ref().map_or(0, Bytes::len) as u64;
            let (lower, upper) = (self.size.lower(), self.size.upper());
            self.size = SizeHint::new();
            self.size.set_lower(lower.saturating_sub(sent));
            if let Some(upper) = upper {
                self.size.set_upper(upper.saturating_sub(sent));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let is_forwarded = matches!(&self.rest, Rest::Forwarded(rest) if rest.is_end_stream());
        self.read.is_empty() && (self.has_ended || is_forwarded)
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};
    use proptest::prelude::*;

    use super::super::MAX_MEMORY;
    use super::*;

    fn bytes(request: &BufferedRequest) -> Vec<u8> {
        request.chunks.iter().flatten().copied().collect()
    }

    proptest! {
        #[test]
        fn copied_chunks_are_equal_and_counted(
            sizes in proptest::collection::vec(prop_oneof![0_usize..8, 0_usize..20_000], 0..60),
            limit in 0_usize..200_000,
        ) {
            let memory = Arc::default();
            let mut copied = Copied::new(limit, false, &memory);
            let mut passed = Vec::new();
            let mut fits = true;
            for (place, size) in sizes.into_iter().enumerate() {
                let chunk = vec![u8::try_from(place).unwrap(); size];
                let would_fit = copied.left >= size.max(1);
                fits = copied.push(&chunk);
                prop_assert_eq!(fits, would_fit);
                if !fits {
                    break;
                }
                passed.extend(chunk);
            }
            let request = copied.whole();
            let held: usize = request.chunks.iter().map(Bytes::len).sum();
            prop_assert_eq!(memory.in_use(), request.reserved);
            prop_assert!(held <= request.reserved, "{} of {}", held, request.reserved);
            prop_assert!(request.reserved <= (2 * held + FIRST_BUFFER).min(limit.max(held)));
            prop_assert!(!fits || bytes(&request) == passed);
            drop(request);
            prop_assert_eq!(memory.in_use(), 0);
        }
    }

    #[test]
    fn chunk_without_memory_is_not_copied() {
        let memory: Arc<ReplayBudget> = Arc::default();
        assert!(memory.reserve(MAX_MEMORY - 5_000));
        let mut copied = Copied::new(MAX_MEMORY, false, &memory);
        assert!(copied.push(&[0; 5_000]) && !copied.push(b"1"));
        drop(copied);
        assert_eq!(memory.in_use(), MAX_MEMORY - 5_000);
    }

    /// A request of these chunks, which is never ready at first.
    fn arriving(chunks: &[&'static str]) -> (Body, ArrivingRequest) {
        let frames: Vec<_> =
            chunks.iter().map(|chunk| Ok::<_, Status>(Frame::data((*chunk).into()))).collect();
        let rest = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let copied = Copied::new(1_000, false, &Arc::default());
        forward(VecDeque::new(), rest, copied, SizeHint::default())
    }

    fn poll(call: &mut ArrivingRequest, takes_over: bool) -> Poll<Option<Vec<u8>>> {
        let mut cx = Context::from_waker(Waker::noop());
        call.poll(takes_over, &mut cx).map(|request| request.as_ref().map(bytes))
    }

    #[tokio::test]
    async fn call_continues_where_the_attempt_stopped() {
        for forwarded in 0..=3 {
            let (mut body, mut call) = arriving(&["one", "two", "three"]);
            for _ in 0..forwarded {
                body.frame().await.unwrap().unwrap();
            }
            assert_eq!(poll(&mut call, false), Poll::Pending);
            assert_eq!(poll(&mut call, true), Poll::Ready(Some(b"onetwothree".to_vec())));
            let lost = body.frame().await.unwrap().unwrap_err();
            assert_eq!(lost.code(), tonic::Code::Cancelled);
            assert!(!body.is_end_stream(), "it never looks complete");
        }
    }

    #[tokio::test]
    async fn attempt_continues_alone_without_the_call() {
        let (mut body, call) = arriving(&["one", "two", "three"]);
        body.frame().await.unwrap().unwrap();
        drop(call);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "twothree");
    }

    #[tokio::test]
    async fn request_is_kept_after_its_attempt_was_dropped() {
        let (mut body, mut call) = arriving(&["one", "two"]);
        body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(poll(&mut call, false), Poll::Pending);
        assert_eq!(poll(&mut call, true), Poll::Ready(Some(b"onetwo".to_vec())));
    }

    /// A body that ends with its last chunk, and announces its size.
    #[tokio::test]
    async fn body_that_knows_its_end_is_kept_with_its_last_chunk() {
        let rest = Body::new(http_body_util::Full::new(Bytes::from_static(b"hello")));
        let size = rest.size_hint();
        let copied = Copied::new(1_000, true, &Arc::default());
        let (mut body, mut call) = forward(VecDeque::new(), rest, copied, size);
        assert_eq!(body.size_hint().exact(), Some(5));
        body.frame().await.unwrap().unwrap();
        assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(kept)) = call.poll(false, &mut cx) else { panic!("it is whole") };
        assert_eq!(kept.body().size_hint().exact(), Some(5));
    }

    /// The call must never see a stale frame of a body that another thread polls.
    #[test]
    fn frames_pass_once_while_both_sides_poll() {
        for round in 0..200 {
            let chunks: Vec<&'static str> = ["a", "b", "c", "d", "e", "f", "g", "h"].into();
            let (mut body, mut call) = arriving(&chunks);
            let attempt = std::thread::spawn(move || {
                let mut cx = Context::from_waker(Waker::noop());
                let mut seen = Vec::new();
                while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) {
                    seen.extend_from_slice(frame.data_ref().unwrap());
                }
                seen
            });
            (0..round).for_each(|_| std::hint::spin_loop());
            let kept = loop {
                match poll(&mut call, true) {
                    Poll::Ready(kept) => break kept.unwrap(),
                    Poll::Pending => std::thread::yield_now(),
                }
            };
            assert_eq!(kept, b"abcdefgh");
            assert!(b"abcdefgh".starts_with(&attempt.join().unwrap()));
        }
    }
}
