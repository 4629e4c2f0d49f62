//! Listener of one port: accepts connections up to the limit and runs each handshake.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Counters;
use crate::connection::activity::Activity;
use crate::connection::http::{protocol, serve};
use crate::connection::io::{PlainOrTls, Socket};
use crate::connection::{ConnectionInfo, ConnectionPermits, RequestTimeouts};
use crate::limits::Limit;
use crate::limits::Limiter;
use crate::limits::Line;
use crate::limits::QuotaPermit;
use crate::tls::ClientNames;
use crate::tls::HandshakeFailure;
use crate::tls::TlsReloader;
use crate::tls::Trust;

/// The first byte of every TLS connection.
const HANDSHAKE: u8 = 0x16;
const WRONG_SCHEME: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
    connection: close\r\ncontent-length: 33\r\n\r\nthis port speaks TLS: use https\r\n\n";
const SAY_WITHIN: Duration = Duration::from_secs(1);

/// Listener configuration of one port.
#[derive(Clone)]
pub struct Listener {
    /// The services.
    pub routes: Router,
    /// TLS; `None`: plaintext.
    pub tls: Option<Arc<TlsReloader>>,
    /// The limits.
    pub limiter: Limiter,
    /// Counts connections and failures.
    pub counters: Counters,
    /// Time limits of requests by kind of answer.
    pub patience: RequestTimeouts,
    /// Stops accepting; open connections finish their requests.
    pub stopping: CancellationToken,
    /// Closes all connections.
    pub cut: CancellationToken,
}

impl Listener {
    /// Serves until it is stopped and the last connection has ended.
    pub async fn serve(self, listener: TcpListener) {
        let tracker = TaskTracker::new();
        let protocol = Arc::new(protocol(self.limiter.limits()));
        let port = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &port.limiter) => accepted,
                () = port.stopping.cancelled() => break,
            };
            let (stream, address) = accepted;
            let Some(room) = port.limiter.room() else { continue };
            let Some(newcomer) = port.limiter.newcomer(address.ip()) else { continue };
            let (port, protocol) = (port.clone(), protocol.clone());
            tracker.spawn(async move {
                port.counters.connections.increment(1.0);
                let cut = port.cut.child_token();
                port.connection(&protocol, stream, (address, newcomer), cut).await;
                port.counters.connections.decrement(1.0);
                drop(room);
            });
        }
        drop(listener);
        tracker.close();
        tracker.wait().await;
    }

    async fn connection(
        &self,
        protocol: &Builder<TokioExecutor>,
        stream: TcpStream,
        (address, newcomer): (SocketAddr, QuotaPermit),
        cut: CancellationToken,
    ) {
        let opened = tokio::select! {
            opened = self.open(stream, address) => opened,
            () = cut.cancelled() => return,
            () = self.stopping.cancelled() => return,
        };
        let Some(Opened { stream, certificate, untrusted }) = opened else { return };
        let tls = matches!(stream, PlainOrTls::Tls(_));
        let goodbye = cut.child_token();
        let counted = Arc::new(Mutex::new(ConnectionPermits { newcomer: Some(newcomer), registered: None }));
        let peer = ConnectionInfo { address, tls, certificate, cut, goodbye, counted };
        let socket = Socket { stream, activity: Activity::new(Instant::now()) };
        tokio::select! {
            () = serve(protocol, socket, peer, self) => {}
            () = untrusted => {
                if let Some(left_out) = self.limiter.line(Line::Untrusted) {
                    tracing::info!(%address, left_out, "client certificate no longer trusted; connection closed");
                }
            }
        }
    }

    /// Waits for the first byte, then runs the handshake.
    async fn open(&self, stream: TcpStream, address: SocketAddr) -> Option<Opened> {
        let limits = self.limiter.limits();
        let mut first = [0];
        match timeout(limits.first_byte_within, stream.peek(&mut first)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return None,
            Err(_) => {
                self.limiter.hit(Limit::FirstByte);
                return None;
            }
        }
        let Some(tls) = &self.tls else { return Some(Opened::plain(stream)) };
        if first[0] != HANDSHAKE {
            self.failed(address, HandshakeFailure::NotTls);
            refuse_plaintext(stream, first[0]).await;
            return None;
        }
        let trust = tls.trust();
        let handshake = TlsAcceptor::from(tls.config()).accept(stream);
        match timeout(limits.handshake_within, handshake).await {
            Ok(Ok(stream)) => Some(Opened::encrypted(stream, trust)),
            Ok(Err(error)) => {
                self.failed(address, HandshakeFailure::of(&error));
                tracing::debug!(%address, %error, "TLS handshake failed");
                None
            }
            Err(_) => {
                self.limiter.hit(Limit::Handshake);
                None
            }
        }
    }

    fn failed(&self, address: SocketAddr, why: HandshakeFailure) {
        tracing::debug!(%address, why = why.name(), "no TLS");
        self.counters.tls.handshake_failed(why);
    }
}

/// A connection after its handshake.
struct Opened {
    stream: PlainOrTls,
    certificate: Option<Arc<ClientNames>>,
    /// Ends when the client's certificate is no longer trusted.
    untrusted: BoxFuture<'static, ()>,
}

impl Opened {
    fn plain(stream: TcpStream) -> Self {
        Self { stream: PlainOrTls::Plain(stream), certificate: None, untrusted: pending().boxed() }
    }

    fn encrypted(stream: TlsStream<TcpStream>, trust: Trust) -> Self {
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let certificate = chain.first().map(|shown| Arc::new(ClientNames::of(shown)));
        let stream = PlainOrTls::Tls(Box::new(stream));
        Self { stream, certificate, untrusted: trust.lost(chain).boxed() }
    }
}

/// Answers a plaintext request on a TLS port.
async fn refuse_plaintext(mut stream: TcpStream, first: u8) {
    if first.is_ascii_uppercase() {
        let _ = timeout(SAY_WITHIN, stream.write_all(WRONG_SCHEME)).await;
        let _ = timeout(SAY_WITHIN, stream.shutdown()).await;
    }
}

/// Accepts the next connection. Ignores connections that failed during setup; pauses when the machine is out
/// of sockets.
async fn accept(listener: &TcpListener, limiter: &Limiter) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if stream.set_nodelay(true).is_ok() {
                    return (stream, address);
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                ) => {}
            Err(error) => {
                if let Some(left_out) = limiter.line(Line::NotAccepted) {
                    tracing::warn!(%error, left_out, "accepting a connection failed");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
