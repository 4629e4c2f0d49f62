//! Accepts connections and serves HTTP on them until they end or are drained.
//!
//! A drained connection gets a GOAWAY: requests in flight end, further ones go elsewhere.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use damper_endpoint::Gathered;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::failure::Reset;

/// Limit of a request's head.
pub(crate) const MAX_HEAD_BYTES: u32 = 64 << 10;
/// Receive window of a stream.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Receive window of a connection: one stalled stream leaves room for the others.
pub(crate) const CONNECTION_WINDOW: u32 = 16 * STREAM_WINDOW;
const MAX_STREAMS: u32 = 1_000;
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
/// Pause after a failed accept: usually there are too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// When connections end, and the tasks that serve them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drain {
    /// Open connections get a GOAWAY. Further ones are served: callers learn of the drain one by one.
    pub(crate) begins: CancellationToken,
    /// The listener closes, and all connections get a GOAWAY.
    pub(crate) stops: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Drain {
    /// Stops.
    pub(crate) fn stop(&self) {
        self.begins.cancel();
        self.stops.cancel();
        self.tasks.close();
    }

    /// Stops, and waits until all connections have ended.
    pub(crate) async fn stopped(&self) {
        self.stop();
        self.tasks.wait().await;
    }
}

/// Accepts connections until it stops, each served by a task of its own.
pub(crate) async fn accept<F>(listener: TcpListener, drain: Drain, mut serve: impl FnMut(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.stops.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(target: "damper", %error, "connection without nodelay");
                }
                drain.tasks.spawn(serve(stream));
            }
            Err(error) => {
                tracing::warn!(target: "damper", %error, "connection not accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Serves HTTP/2 on a connection until it ends. After `goodbye` it accepts no more requests.
pub(crate) async fn serve<I, S, B>(io: I, service: S, goodbye: impl Future<Output = ()>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Reset>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error = Reset> + Send + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_EVERY)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let mut connection = pin!(builder.serve_connection(Gathered::new(TokioIo::new(io)), service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = goodbye => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(target: "damper", %error, "connection ended");
    }
}
