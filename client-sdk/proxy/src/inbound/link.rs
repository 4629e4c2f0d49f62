//! The connection to the service that belongs to one connection of a caller.
//!
//! Opened with the first request, and again after it was lost. A request that a closing connection has not
//! taken is sent once more, on a new one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use damper_endpoint::Gathered;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::listen::{CONNECTION_WINDOW, MAX_HEAD_BYTES, STREAM_WINDOW};
use crate::lock::lock;
use crate::request_body::RequestBody;

/// Limit for a connect: the service is on this machine.
const WITHIN: Duration = Duration::from_secs(5);

type Sender = SendRequest<RequestBody>;

#[derive(Debug)]
pub(super) struct Link {
    to: SocketAddr,
    /// Held while connecting, so that requests share the connection.
    connecting: tokio::sync::Mutex<()>,
    sender: Arc<std::sync::Mutex<Option<Sender>>>,
    /// A connect has failed. The caller gets a GOAWAY then, so no request waits for another one.
    has_failed: AtomicBool,
    ended: CancellationToken,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum Failed {
    /// The service was not reached, and has not seen the request.
    NotConnected(String),
    /// The connection or the stream broke.
    Broken(hyper::Error),
}

impl Link {
    pub(super) fn new(to: SocketAddr) -> Self {
        Self {
            to,
            connecting: Default::default(),
            sender: Arc::default(),
            has_failed: AtomicBool::new(false),
            ended: CancellationToken::new(),
        }
    }

    /// Resolves when the service has closed the connection, or was not reached.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(super) async fn send(&self, request: Request<RequestBody>) -> Result<Response<Incoming>, Failed> {
        let mut request = request;
        for _ in 0..2 {
            let mut sender = self.sender().await?;
            let answer = sender.try_send_request(request);
            // A closed connection returns unsent requests when the last sender is dropped.
            drop(sender);
            let mut failed = match answer.await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            match failed.take_message() {
                Some(untaken) => request = untaken,
                None => return Err(Failed::Broken(failed.into_error())),
            }
        }
        self.ended.cancel();
        Err(Failed::NotConnected("the service closed the connection before it took the request".to_owned()))
    }

    async fn sender(&self) -> Result<Sender, Failed> {
        let known = || lock(&self.sender).clone().filter(|sender| !sender.is_closed());
        if let Some(sender) = known() {
            return Ok(sender);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(sender) = known() {
            return Ok(sender);
        }
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(Failed::NotConnected("the service was not reached".to_owned()));
        }
        let sender = self.connect().await.map_err(|error| {
            self.has_failed.store(true, Ordering::Relaxed);
            self.ended.cancel();
            Failed::NotConnected(error)
        })?;
        *lock(&self.sender) = Some(sender.clone());
        Ok(sender)
    }

    async fn connect(&self) -> Result<Sender, String> {
        let stream = connect(self.to).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let shaken = builder.handshake(Gathered::new(TokioIo::new(stream))).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        let (place, ended) = (Arc::clone(&self.sender), self.ended.clone());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(target: "damper", %error, "connection to the service ended");
            }
            // Requests that arrived after the end are returned once no sender is left.
            lock(&place).take();
            ended.cancel();
        });
        Ok(sender)
    }
}

/// Connects to the service.
pub(super) async fn connect(to: SocketAddr) -> Result<TcpStream, String> {
    let connecting = tokio::time::timeout(WITHIN, TcpStream::connect(to)).await;
    let stream = connecting.map_err(|_| format!("not connected within {WITHIN:?}"))?;
    let stream = stream.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}
