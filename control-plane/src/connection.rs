//! Accepted connections: who is at the other end, and a way to cut one off.
//!
//! A peer that stops reading leaves its streams where no message can reach them: HTTP/2 asks for no more data,
//! so not even an error can be sent. Cutting the connection is the only way to be rid of it; each request
//! carries a handle that does it. The same handle ends what outlasts the drain time on shutdown, and a peer that
//! never says anything.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::metrics::Gauge;
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// How long a new connection may stay silent.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(10);

/// What each request knows of the connection it came over.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    cut: CancellationToken,
}

impl Peer {
    /// Ends the connection at once.
    pub(crate) fn cut_off(&self) {
        self.cut.cancel();
    }
}

/// One accepted connection.
pub(crate) struct Connection {
    stream: TcpStream,
    peer: Peer,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Until the first byte came.
    silence: Option<Pin<Box<Sleep>>>,
    open: Gauge,
}

/// Accepts connections; `all` ends each of them.
pub(crate) fn incoming(
    listener: TcpListener,
    all: CancellationToken,
    open: Gauge,
) -> impl Stream<Item = io::Result<Connection>> {
    futures_util::stream::unfold(listener, move |listener| {
        let (all, open) = (all.clone(), open.clone());
        async move {
            let accepted = accept(&listener).await;
            let connection = accepted.map(|(stream, address)| Connection::new(stream, address, &all, open));
            Some((connection, listener))
        }
    })
}

/// The next connection. One that failed while it was set up is its own affair; a machine out of sockets gets
/// time to recover.
async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if stream.set_nodelay(true).is_ok() {
                    return Ok((stream, address));
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                ) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, address: SocketAddr, all: &CancellationToken, open: Gauge) -> Self {
        let cut = all.child_token();
        open.increment(1.0);
        Self {
            stream,
            cut: Box::pin(cut.clone().cancelled_owned()),
            peer: Peer { address, cut },
            silence: Some(Box::pin(sleep(FIRST_BYTE_WITHIN))),
            open,
        }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.peer.cut.is_cancelled() || self.cut.as_mut().poll(context).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "cut off by the server"));
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.check(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Some(silence) = &mut this.silence {
            if read.is_pending() {
                ready!(silence.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if buf.filled().len() > before {
                this.silence = None;
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
