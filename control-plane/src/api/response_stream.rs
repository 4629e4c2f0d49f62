//! Streams of which the end is told: a reader that sees one end well has all of it.
//!
//! The items go through a channel that is full whenever the reader is slower than the server, so the last word has a
//! way of its own and waits until they are read. A producer that ends without a word, because it panicked or because
//! the server is going, has not finished, and its stream ends with an error. A reader that leaves a message unread for
//! too long is cut off with its connection: HTTP/2 has no other way to be rid of what it was sent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::metrics::Counter;
use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use damper_net::connection::ConnectionInfo;

use crate::state::error::ApiError;
use damper_net::limits::Limiter;
use damper_net::limits::Line;

/// The reader of an answer.
pub(crate) struct Reader {
    /// `None` only in tests.
    peer: Option<ConnectionInfo>,
    /// How long one message may wait for it.
    within: Duration,
    slow: Counter,
    limiter: Limiter,
    stopping: CancellationToken,
}

/// The way to a reader.
pub(crate) struct Out<T> {
    items: mpsc::Sender<T>,
    reader: Reader,
}

/// The reader is gone, or was cut off.
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
    /// Sends once there is room; cuts the reader off if it takes too long to make some.
    pub(crate) async fn send(&self, item: T) -> Result<(), Gone> {
        let Reader { peer, within, slow, limiter, .. } = &self.reader;
        match timeout(*within, self.items.send(item)).await {
            Ok(sent) => sent.map_err(|_| Gone),
            Err(_) => {
                slow.increment(1);
                if let Some(peer) = peer {
                    if let Some(left_out) = limiter.line(Line::SlowReader) {
                        let address = peer.address;
                        tracing::warn!(%address, left_out, "an answer was not read in time; connection closed");
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

/// What a producer sends, then how it ended.
pub(crate) struct ResponseStream<T> {
    items: mpsc::Receiver<T>,
    /// None once it was told.
    end: Option<oneshot::Receiver<Result<(), ApiError>>>,
}

impl<T: Send + 'static> ResponseStream<T> {
    /// Starts a producer that may be `room` items ahead of its reader. It is dropped when the server stops.
    pub(crate) fn of<F>(reader: Reader, room: usize, produce: impl FnOnce(Out<T>) -> F) -> Self
    where
        F: Future<Output = Result<(), ApiError>> + Send + 'static,
    {
        let (out, items) = mpsc::channel(room);
        let (last_word, end) = oneshot::channel();
        let stopping = reader.stopping.clone();
        let producer = produce(Out { items: out, reader });
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = producer => ended,
                () = stopping.cancelled() => Err(ApiError::unavailable("the server is stopping")),
            };
            // A reader that is gone is told nothing.
            let _ = last_word.send(ended);
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
        let ended = ended.unwrap_or_else(|_| Err(ApiError::unavailable("the answer broke off")));
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

    /// Sends two numbers into a channel with room for one, then ends in its way.
    async fn two(out: Out<u8>, ended: Result<(), ApiError>) -> Result<(), ApiError> {
        for n in [1, 2] {
            if out.send(n).await.is_err() {
                return Ok(());
            }
        }
        ended
    }

    async fn told(answer: ResponseStream<u8>) -> (Vec<u8>, Option<Code>) {
        let all: Vec<_> = answer.collect().await;
        let items = all.iter().filter_map(|item| item.as_ref().ok().copied()).collect();
        (items, all.last().and_then(|last| last.as_ref().err()).map(Status::code))
    }

    #[tokio::test]
    async fn the_end_is_told_after_everything_that_was_sent() {
        let stopping = CancellationToken::new();
        let done = ResponseStream::of(reader(&stopping), 1, |out| two(out, Ok(())));
        assert_eq!(told(done).await, (vec![1, 2], None));
        let failed =
            ResponseStream::of(reader(&stopping), 1, |out| two(out, Err(ApiError::Damaged("x".to_owned()))));
        assert_eq!(told(failed).await, (vec![1, 2], Some(Code::DataLoss)));
    }

    #[tokio::test]
    async fn a_slow_reader_of_a_server_that_stops_is_told_that_there_was_more() {
        let stopping = CancellationToken::new();
        let answer = ResponseStream::of(reader(&stopping), 1, |out| two(out, Ok(())));
        stopping.cancel();
        // Full with the first number, and nobody reads while the server stops.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let (items, code) = told(answer).await;
        assert!(items.len() < 2, "{items:?}");
        assert_eq!(code, Some(Code::Unavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_is_given_up() {
        let stopping = CancellationToken::new();
        let (told, ended) = oneshot::channel();
        let answer = ResponseStream::of(reader(&stopping), 1, |out: Out<u8>| async move {
            let sent = [out.send(1).await, out.send(2).await];
            let _ = told.send(sent.map(|sent| sent.is_ok()));
            Ok(())
        });
        assert_eq!(ended.await.unwrap(), [true, false]);
        drop(answer);
    }

    #[tokio::test]
    async fn a_producer_that_panics_has_not_finished() {
        let stopping = CancellationToken::new();
        let answer = ResponseStream::of(reader(&stopping), 1, |out: Out<u8>| async move {
            let _ = out.send(1).await;
            panic!("a defect")
        });
        assert_eq!(told(answer).await, (vec![1], Some(Code::Unavailable)));
    }
}
