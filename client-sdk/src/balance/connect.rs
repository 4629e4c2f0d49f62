//! Connects to an endpoint: TCP, TLS if the target requires it, HTTP/2.
//!
//! TLS files are read for new connections, so renewed certificates need no restart. Lost peers are detected
//! by TCP keep-alive and user timeout. HTTP/2 pings are not used: some servers treat them as abuse.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use damper_endpoint::{Access, Gathered, OneTask};
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tonic::transport::Uri;
use tower_service::Service;

use super::limit::{self, Limit};
use super::stream::Sender;
#[cfg(feature = "tls")]
use super::tls::Tls;

/// Limit for TCP and TLS together.
pub(super) const WITHIN: Duration = Duration::from_secs(5);
/// Idle time before TCP probes the peer, and time after which unacknowledged data closes the connection.
const VANISHED_AFTER: Duration = Duration::from_secs(20);

/// Limit of the headers or trailers of a response: errors with details can be large.
const MAX_HEAD_BYTES: u32 = 64 << 10;

/// Receive window of a connection, in windows of streams: fewer stalled streams leave room for others.
pub(super) const STREAMS_IN_WINDOW: u32 = 16;

/// Resolves when the connection accepts no more requests, with an error if it broke. Requests in flight
/// continue.
pub(super) type End = oneshot::Receiver<hyper::Result<()>>;

/// A connection whose settings have arrived.
pub(super) struct Opened {
    pub(super) sender: Sender,
    pub(super) limit: Limit,
    pub(super) end: End,
}

#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    stream_window: Option<u32>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<Tls>>,
}

impl Connector {
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "only TLS needs them"))]
    pub(super) fn new(target: &Uri, access: Arc<Access>, stream_window: Option<u32>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(VANISHED_AFTER));
        tcp.set_keepalive_interval(Some(VANISHED_AFTER / 4));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(VANISHED_AFTER));
        Self {
            tcp,
            stream_window,
            #[cfg(feature = "tls")]
            tls: Tls::of(target, access),
        }
    }

    /// # Errors
    /// The reason why there is no connection.
    pub(super) async fn connect(&self, address: SocketAddr) -> Result<Opened, String> {
        let connecting = tokio::time::timeout(WITHIN, self.begin(address));
        connecting.await.unwrap_or_else(|_| Err(format!("not connected within {WITHIN:?}")))
    }

    async fn begin(&self, address: SocketAddr) -> Result<Opened, String> {
        let uri = format!("http://{address}").parse::<Uri>().map_err(|error| error.to_string())?;
        let tcp = self.tcp.clone().call(uri).await.map_err(|error| described(&error))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return self.greet(tls.encrypt(tcp).await?).await;
        }
        self.greet(tcp.into_inner()).await
    }

    async fn greet<T>(&self, stream: T) -> Result<Opened, String>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stream, limit, settings) = limit::watch(stream);
        let task = ConnectionTask::default();
        let mut builder = http2::Builder::new(task.clone());
        builder.timer(TokioTimer::new()).max_header_list_size(MAX_HEAD_BYTES);
        if let Some(window) = self.stream_window {
            builder
                .initial_stream_window_size(window)
                .initial_connection_window_size(window * STREAMS_IN_WINDOW);
        }
        let shaken = builder.handshake(Gathered::new(TokioIo::new(stream))).await;
        let (sender, connection) = shaken.map_err(|error| described(&error))?;
        let (tell, mut end) = oneshot::channel();
        task.execute(async move {
            // The receiver is gone once the endpoint was removed.
            _ = tell.send(connection.await);
        });
        tokio::select! {
            biased;
            Ok(()) = settings => Ok(Opened { sender, limit, end }),
            ended = &mut end => Err(match ended {
                Ok(Err(error)) => described(&error),
                _ => "the endpoint closed the connection at once".to_owned(),
            }),
        }
    }
}

/// Runs all parts of one connection in one task.
#[derive(Clone, Default)]
struct ConnectionTask(Arc<OneTask>);

impl<F> Executor<F> for ConnectionTask
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, part: F) {
        self.0.execute(Box::pin(part));
    }
}

pub(super) fn described(error: &(dyn std::error::Error + 'static)) -> String {
    damper_endpoint::problem::of(error).unwrap_or_else(|| damper_endpoint::problem::with_sources(error))
}
