//! Lets the writes of a connection wait until the tasks that are ready have run.
//!
//! An HTTP/2 connection writes each frame that it gets, also when the next one comes from a task that is
//! about to run: the body behind a request's head, the response behind another stream's. Each write is a
//! system call, a packet and a wake-up of the peer. Here the first write after a read yields the
//! connection's task once, and what it gets meanwhile leaves with it. Where several tasks share that of a
//! connection ([`OneTask`](crate::OneTask)), these alone run meanwhile. Without other ready tasks that costs
//! one more poll. On a runtime with several workers it would also wake an idle one for that poll, so there
//! nothing is gathered.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::runtime::Handle;

/// A stream whose writes are gathered.
#[derive(Debug)]
pub struct Gathered<T> {
    stream: T,
    turn: Turn,
    is_alone: bool,
}

/// Where the connection's task is. Each of its turns reads first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing is to be written yet.
    Reads,
    /// A write waits for the other tasks.
    Yields,
    /// They have run.
    Writes,
}

impl<T> Gathered<T> {
    /// Returns a stream that gathers what is written to `stream`, if one worker runs all tasks.
    pub fn new(stream: T) -> Self {
        let is_alone = Handle::try_current().is_ok_and(|runtime| runtime.metrics().num_workers() == 1);
        Self { stream, turn: Turn::Reads, is_alone }
    }

    /// Pending once in each turn.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_alone && self.turn == Turn::Reads {
            self.turn = Turn::Yields;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.turn = Turn::Writes;
        Poll::Ready(())
    }
}

impl<T: Read + Unpin> Read for Gathered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<Result<()>> {
        if self.turn == Turn::Writes {
            self.turn = Turn::Reads;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for Gathered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        ready!(self.poll_turn(cx));
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        ready!(self.poll_turn(cx));
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Incoming;
    use hyper::client::conn::http2 as client;
    use hyper::rt::ReadBuf;
    use hyper::server::conn::http2 as server;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::DuplexStream;
    use tokio::sync::Barrier;

    use super::*;

    const STREAMS: usize = 8;

    /// Counts the writes to a stream.
    struct Counted<T>(T, Arc<AtomicUsize>);

    impl<T: Read + Unpin> Read for Counted<T> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: ReadBufCursor<'_>,
        ) -> Poll<Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl<T: Write + Unpin> Write for Counted<T> {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    type Counter = Arc<AtomicUsize>;
    type Sender = client::SendRequest<Full<Bytes>>;

    fn gathered(stream: DuplexStream) -> (Gathered<Counted<TokioIo<DuplexStream>>>, Counter) {
        let writes = Counter::default();
        (Gathered::new(Counted(TokioIo::new(stream), Arc::clone(&writes))), writes)
    }

    /// Connects a client to a server that answers this number of requests together. Returns the writes of the
    /// client, and those of the server from the last request on.
    async fn connected(together: usize) -> (Sender, Counter, impl Fn() -> usize) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let ((near, sent), (far, answered)) = (gathered(near), gathered(far));
        let (all, before) = (Arc::new(Barrier::new(together)), Counter::default());
        let since = {
            let (answered, before) = (Arc::clone(&answered), Arc::clone(&before));
            move || answered.load(Ordering::Relaxed) - before.load(Ordering::Relaxed)
        };
        let service = service_fn(move |request: Request<Incoming>| {
            let (all, before, answered) = (Arc::clone(&all), Arc::clone(&before), Arc::clone(&answered));
            async move {
                _ = request.into_body().collect().await;
                if all.wait().await.is_leader() {
                    before.store(answered.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"answer"))))
            }
        });
        tokio::spawn(server::Builder::new(TokioExecutor::new()).serve_connection(far, service));
        let (sender, connection) = client::handshake(TokioExecutor::new(), near).await.unwrap();
        tokio::spawn(connection);
        (sender, sent, since)
    }

    async fn call(mut sender: Sender) {
        let request = Request::post("http://callee/a.B/C").body(Full::new(Bytes::from_static(b"request")));
        let response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "answer");
    }

    #[tokio::test]
    async fn first_write_of_a_turn_yields_once() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (near, _far) = tokio::io::duplex(64);
        let (mut stream, writes) = gathered(near);
        let mut space = [0; 8];
        for turn in 1..3 {
            let mut buffer = ReadBuf::new(&mut space);
            assert!(Pin::new(&mut stream).poll_read(cx, buffer.unfilled()).is_pending());
            assert!(Pin::new(&mut stream).poll_write(cx, b"a").is_pending());
            let mut buffer = ReadBuf::new(&mut space);
            assert!(Pin::new(&mut stream).poll_read(cx, buffer.unfilled()).is_pending());
            assert!(Pin::new(&mut stream).poll_write(cx, b"ab").is_ready());
            assert!(Pin::new(&mut stream).poll_write(cx, b"c").is_ready());
            assert_eq!(writes.load(Ordering::Relaxed), 2 * turn);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_workers_write_at_once() {
        let (near, _far) = tokio::io::duplex(64);
        let (mut stream, _) = gathered(near);
        assert!(Pin::new(&mut stream).poll_write(&mut Context::from_waker(Waker::noop()), b"a").is_ready());
    }

    #[tokio::test]
    async fn head_and_body_of_a_request_leave_together() {
        let (sender, sent, _) = connected(1).await;
        call(sender.clone()).await;
        let before = sent.load(Ordering::Relaxed);
        call(sender).await;
        assert_eq!(sent.load(Ordering::Relaxed) - before, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn responses_of_ready_tasks_leave_together() {
        let (sender, _, answered) = connected(STREAMS).await;
        let calls: Vec<_> = (0..STREAMS).map(|_| tokio::spawn(call(sender.clone()))).collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(answered(), 1);
    }
}
