//! Response streams with a definite end: a reader that sees a stream end without an error has all of it.
//!
//! Items use a channel that is full while the reader is slower than the server. The end uses a channel of its
//! own and follows the items. If a producer ends without a result, because of a panic or a shutdown, the
//! stream ends with an error.
//!
//! If a message is unread for too long, the connection of the reader is closed: HTTP/2 has no other way to
//! release the memory.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::metrics::Counter;
use damper_net::limits::{Limiter, Line};
use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use damper_net::connection::ConnectionInfo;

use crate::state::error::ApiError;

/// The reader of a response stream.
pub(crate) struct Reader {
    /// `None` only in tests.
    peer: Option<ConnectionInfo>,
    /// Longest time that a message may wait for the reader.
    within: Duration,
    slow: Counter,
    limiter: Limiter,
    stopping: CancellationToken,
}

/// The sending half of a response stream.
pub(crate) struct Out<T> {
    items: mpsc::Sender<T>,
    reader: Reader,
}

/// The reader has disconnected or was cut off.
#[derive(Debug)]
pub(crate) struct Gone;

/// The limits of response streams.
#[derive(Clone)]
pub(crate) struct StreamLimits {
    pub(crate) slow_consumer_after: Duration,
    pub(crate) slow_consumers: Counter,
    pub(crate) limiter: Limiter,
    pub(crate) stopping: CancellationToken,
}

impl Reader {
    pub(crate) fn of<T>(request: &Request<T>, limits: &StreamLimits) -> Self {
        Self {
            peer: request.extensions().get::<ConnectionInfo>().cloned(),
            within: limits.slow_consumer_after,
            slow: limits.slow_consumers.clone(),
            limiter: limits.limiter.clone(),
            stopping: limits.stopping.clone(),
        }
    }
}

impl<T> Out<T> {
    /// Sends an item once there is room; closes the connection if the reader takes too long.
    pub(crate) async fn send(&self, item: T) -> Result<(), Gone> {
        let Reader { peer, within, slow, limiter, .. } = &self.reader;
        match timeout(*within, self.items.send(item)).await {
            Ok(sent) => sent.map_err(|_| Gone),
            Err(_) => {
                slow.increment(1);
                if let Some(peer) = peer {
                    if let Some(left_out) = limiter.line(Line::SlowReader) {
                        let address = peer.address;
                        tracing::warn!(%address, left_out, "client did not read a response in time; connection closed");
                    }
                    peer.cut_off();
                }
                Err(Gone)
            }
        }
    }

    /// Waits until the reader is gone.
    pub(crate) async fn closed(&self) {
        self.items.closed().await;
    }
}

/// The items of a producer, then its result.
pub(crate) struct ResponseStream<T> {
    items: mpsc::Receiver<T>,
    /// `None` after the result was returned.
    end: Option<oneshot::Receiver<Result<(), ApiError>>>,
}

impl<T: Send + 'static> ResponseStream<T> {
    /// Starts a producer that may be `room` items ahead of its reader. It is dropped when the server stops.
    pub(crate) fn of<F>(reader: Reader, room: usize, produce: impl FnOnce(Out<T>) -> F) -> Self
    where
        F: Future<Output = Result<(), ApiError>> + Send + 'static,
    {
        let (out, items) = mpsc::channel(room);
        let (end_sender, end) = oneshot::channel();
        let stopping = reader.stopping.clone();
        let producer = produce(Out { items: out, reader });
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = producer => ended,
                () = stopping.cancelled() => Err(ApiError::unavailable("this server of the control plane is stopping")),
            };
            // The reader may be gone.
            let _ = end_sender.send(ended);
        });
        Self { items, end: Some(end) }
    }
}

impl<T> Stream for ResponseStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(item) = ready!(self.items.poll_recv(context)) {
            return Poll::Ready(Some(Ok(item)));
        }
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        let ended = ready!(Pin::new(end).poll(context));
        self.end = None;
        let ended = ended.unwrap_or_else(|_| {
            Err(ApiError::unavailable("the server stopped before the response was complete; try again"))
        });
        Poll::Ready(ended.err().map(|error| Err(error.into())))
    }
}

#[cfg(test)]
mod tests {
    use damper_net::limits::LimitCounters;

    use super::*;
    use damper_net::limits::Limits;

    use futures_util::StreamExt as _;
    use tonic::Code;

    fn reader(stopping: &CancellationToken) -> Reader {
        let (within, slow) = (Duration::from_secs(60), Counter::noop());
        let limiter = Limiter::new(Limits::default(), LimitCounters::noop());
        Reader { peer: None, within, slow, limiter, stopping: stopping.clone() }
    }

    /// Sends two numbers into a channel with room for one, then ends with `ended`.
    async fn two(out: Out<u8>, ended: Result<(), ApiError>) -> Result<(), ApiError> {
        for n in [1, 2] {
            if out.send(n).await.is_err() {
                return Ok(());
            }
        }
        ended
    }

    async fn collected(answer: ResponseStream<u8>) -> (Vec<u8>, Option<Code>) {
        let all: Vec<_> = answer.collect().await;
        let items = all.iter().filter_map(|item| item.as_ref().ok().copied()).collect();
        (items, all.last().and_then(|last| last.as_ref().err()).map(Status::code))
    }

    #[tokio::test]
    async fn end_arrives_after_all_items() {
        let stopping = CancellationToken::new();
        let done = ResponseStream::of(reader(&stopping), 1, |out| two(out, Ok(())));
        assert_eq!(collected(done).await, (vec![1, 2], None));
        let failed =
            ResponseStream::of(reader(&stopping), 1, |out| two(out, Err(ApiError::Damaged("x".to_owned()))));
        assert_eq!(collected(failed).await, (vec![1, 2], Some(Code::DataLoss)));
    }

    #[tokio::test]
    async fn slow_reader_gets_an_error_when_the_server_stops() {
        let stopping = CancellationToken::new();
        let answer = ResponseStream::of(reader(&stopping), 1, |out| two(out, Ok(())));
        stopping.cancel();
        // The channel is full with the first number, and the reader does not read while the server stops.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let (items, code) = collected(answer).await;
        assert!(items.len() < 2, "{items:?}");
        assert_eq!(code, Some(Code::Unavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_reader_is_cut_off() {
        let stopping = CancellationToken::new();
        let (results, ended) = oneshot::channel();
        let answer = ResponseStream::of(reader(&stopping), 1, |out: Out<u8>| async move {
            let sent = [out.send(1).await, out.send(2).await];
            let _ = results.send(sent.map(|sent| sent.is_ok()));
            Ok(())
        });
        assert_eq!(ended.await.unwrap(), [true, false]);
        drop(answer);
    }

    #[tokio::test]
    async fn panic_of_a_producer_ends_the_stream_with_an_error() {
        let stopping = CancellationToken::new();
        let answer = ResponseStream::of(reader(&stopping), 1, |out: Out<u8>| async move {
            let _ = out.send(1).await;
            panic!("a bug")
        });
        assert_eq!(collected(answer).await, (vec![1], Some(Code::Unavailable)));
    }
}
