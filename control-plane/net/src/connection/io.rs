//! Byte stream of a connection, plain or TLS, which reports received bytes to its [`Activity`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::connection::activity::Activity;

pub(super) struct Socket {
    pub stream: PlainOrTls,
    pub activity: Activity,
}

pub(super) enum PlainOrTls {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.stream {
            PlainOrTls::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            PlainOrTls::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if buf.filled().len() > before {
            self.activity.spoke();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            PlainOrTls::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            PlainOrTls::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            PlainOrTls::Plain(stream) => Pin::new(stream).poll_flush(cx),
            PlainOrTls::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            PlainOrTls::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            PlainOrTls::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            PlainOrTls::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            PlainOrTls::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            PlainOrTls::Plain(stream) => stream.is_write_vectored(),
            PlainOrTls::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
