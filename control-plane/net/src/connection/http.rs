//! Serves HTTP over one connection until the peer, a deadline, a GOAWAY or a cut ends it.
//!
//! Sets hyper's defaults explicitly. Protects against HTTP/2 frames that are cheap for the peer and expensive
//! here: streams reset before they are accepted (`MAX_PENDING_RESETS`) and streams that the server must reset
//! ("made you reset", `MAX_FORCED_RESETS`). h2 ends a connection whose head is too large or has too many
//! CONTINUATION frames. It holds one answer to PING and SETTINGS at a time, so a flood waits in the peer's
//! own socket.

use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::time::{Instant, sleep_until};
use tower::ServiceExt as _;

use crate::connection::ConnectionInfo;
use crate::connection::activity::{Activity, OpenRequest, TimeoutAction};
use crate::connection::io::Socket;
use crate::connection::listener::Listener;
use crate::limits::Limiter;
use crate::limits::{Limit, Limits};

/// Limit of a request's head, for HTTP/1.1 and HTTP/2.
pub const MAX_HEAD_BYTES: u32 = 16 << 10;
const MAX_HEADERS: usize = 100;
const MAX_PENDING_RESETS: usize = 20;
const MAX_FORCED_RESETS: usize = 256;
/// Receive window per stream.
pub const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// Receive window per connection.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Send buffer per stream.
const MAX_SEND_BYTES: usize = 64 << 10;
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Time between GOAWAY and the cut, for a peer that exceeded a deadline.
const GO_WITHIN: Duration = Duration::from_secs(1);

/// Returns the protocol settings that all connections share.
pub(super) fn protocol(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // `Activity` distinguishes a slow head from a connection kept for later.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES as usize)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN)
        .max_concurrent_streams(limits.max_streams_per_connection)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_FORCED_RESETS)
        .max_send_buf_size(MAX_SEND_BYTES);
    builder
}

/// Serves one connection.
pub(super) async fn serve(
    protocol: &Builder<TokioExecutor>,
    socket: Socket,
    peer: ConnectionInfo,
    port: &Listener,
) {
    let Listener { limiter, stopping, patience, .. } = port;
    let (routes, patience) = (port.routes.clone(), *patience);
    let activity = socket.activity.clone();
    let (cut, goodbye) = (peer.cut.clone(), peer.goodbye.clone());
    let requests = activity.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let open = requests.begin(request.version() < Version::HTTP_2, patience.with(request.uri().path()));
        answer(routes.clone(), peer.clone(), open, request)
    });
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(socket), service));
    let mut over = pin!(deadline(activity, limiter));
    let mut goodbye_due = pin!(async {
        tokio::select! {
            () = stopping.cancelled() => None,
            () = goodbye.cancelled() => Some(Limit::ConnectionsPerIdentity),
            limit = &mut over => Some(limit),
        }
    });
    tokio::select! {
        ended = &mut connection => log_end(ended),
        () = cut.cancelled() => {}
        limit = &mut goodbye_due => {
            connection.as_mut().graceful_shutdown();
            let is_over_time = matches!(limit, Some(Limit::RequestHead | Limit::IdleConnection | Limit::UnaryDeadline));
            let go_by = is_over_time.then(|| Instant::now() + GO_WITHIN);
            tokio::select! {
                ended = &mut connection => log_end(ended),
                () = cut.cancelled() => {}
                () = until(go_by) => {}
            }
        }
    }
}

/// Resolves when the connection exceeds a deadline, and counts the hit.
async fn deadline(activity: Activity, limiter: &Limiter) -> Limit {
    loop {
        match activity.due(Instant::now(), limiter.limits()) {
            TimeoutAction::At(at) => sleep_until(at).await,
            TimeoutAction::Over(limit) => {
                // An idle connection is no offence.
                limiter.hit(limit);
                return limit;
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}

async fn answer(
    routes: Router,
    peer: ConnectionInfo,
    open: OpenRequest,
    mut request: Request<Incoming>,
) -> Result<Response<TrackedBody>, Infallible> {
    request.extensions_mut().insert(peer);
    let answer = routes.oneshot(request.map(Body::new)).await?;
    Ok(answer.map(|body| TrackedBody { body, _open: open }))
}

/// Response body; its request is open while it lives.
struct TrackedBody {
    body: Body,
    _open: OpenRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
