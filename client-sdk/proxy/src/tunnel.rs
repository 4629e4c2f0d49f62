//! The listener for HTTP CONNECT, to which a service's proxy variable points.
//!
//! gRPC sends `CONNECT host:port` and speaks plaintext HTTP/2 inside. Calls to listed hosts and to names of
//! the cluster are governed, as if each had a listener. All else, such as other HTTPS of the process, is
//! passed on as bytes and counted. A tunnel without bytes for five seconds is closed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Cursor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use damper_sdk::{BoxError, Damper};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::config::{Callee, Connect};
use crate::context::Contexts;
use crate::counters::Counters;
use crate::fields::{self, AnyBody};
use crate::listen::{self, Drain};
use crate::outbound::Outbound;

/// What a connection over HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time for the first bytes.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(5);
/// Time for a connect to a host that is not governed.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Hosts with governed calls.
const MAX_HOSTS: usize = 256;

/// The listener for CONNECT.
pub(crate) struct Tunnels {
    pub(crate) connect: Connect,
    pub(crate) damper: Damper,
    pub(crate) contexts: Arc<Contexts>,
    pub(crate) counters: Arc<Counters>,
    /// The calls to each host and port.
    pub(crate) hosts: Mutex<HashMap<String, Outbound>>,
}

/// Where a tunnel goes.
enum Way {
    /// To a callee, or as bytes if it is not HTTP/2.
    Governed(Box<Outbound>, String),
    Spliced(TcpStream),
}

impl Tunnels {
    /// Accepts connections until the drain begins.
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener, drain: Drain) {
        let tunnels = drain.clone();
        listen::accept(listener, drain, |stream| Arc::clone(&self).serve(stream, tunnels.clone())).await;
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, drain: Drain) {
        let service = service_fn(|request| {
            let (shared, drain) = (Arc::clone(&self), drain.clone());
            async move { Ok::<_, Infallible>(shared.answer(request, drain).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(FIRST_BYTES_WITHIN).keep_alive(false);
        let served = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        if let Err(error) = served {
            tracing::debug!(target: "damper", %error, "connection to the CONNECT listener ended");
        }
    }

    async fn answer(&self, mut request: Request<Incoming>, drain: Drain) -> Response<AnyBody> {
        let mut response = Response::new(fields::no_body());
        match self.way(&request).await {
            Ok(way) => {
                let (upgrade, begins) = (hyper::upgrade::on(&mut request), drain.begins.clone());
                let counters = Arc::clone(&self.counters);
                drain.tasks.spawn(async move {
                    let run = async {
                        let io = TokioIo::new(upgrade.await?);
                        way.run(io, &counters, begins.clone()).await
                    };
                    if let Err(error) = run.await {
                        tracing::debug!(target: "damper", %error, "tunnel ended");
                    }
                });
            }
            Err(status) => *response.status_mut() = status,
        }
        response
    }

    async fn way(&self, request: &Request<Incoming>) -> Result<Way, StatusCode> {
        if request.method() != Method::CONNECT {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let authority = request.uri().authority().filter(|authority| authority.port_u16().is_some());
        let authority = authority.ok_or(StatusCode::BAD_REQUEST)?;
        if let Some((name, external)) = self.connect.callee(authority.host()) {
            let to = authority.as_str().to_owned();
            let outbound = self.outbound(Callee { name, to: to.clone(), external, tls: None })?;
            return Ok(Way::Governed(Box::new(outbound), to));
        }
        if self.connect.only_listed {
            return Err(StatusCode::FORBIDDEN);
        }
        let connected = connect(authority.as_str()).await;
        connected.map(Way::Spliced).map_err(|error| {
            tracing::debug!(target: "damper", to = %authority, %error, "tunnel not connected");
            StatusCode::BAD_GATEWAY
        })
    }

    /// Returns the calls to a host, of which each has its own channel.
    fn outbound(&self, callee: Callee) -> Result<Outbound, StatusCode> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = hosts.get(&callee.to) {
            return Ok(known.clone());
        }
        if hosts.len() >= MAX_HOSTS {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        let made = Outbound::new(&callee, &self.damper, &self.contexts, &self.counters);
        let outbound = made.map_err(|_| StatusCode::BAD_REQUEST)?;
        hosts.insert(callee.to, outbound.clone());
        Ok(outbound)
    }
}

impl Way {
    async fn run<I>(
        self,
        mut io: I,
        counters: &Counters,
        begins: tokio_util::sync::CancellationToken,
    ) -> Result<(), BoxError>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (outbound, to) = match self {
            Self::Governed(outbound, to) => (outbound, to),
            Self::Spliced(stream) => {
                counters.tunnel(false);
                return Ok(splice(io, stream).await?);
            }
        };
        let first = timeout(FIRST_BYTES_WITHIN, first_bytes(&mut io)).await??;
        let is_http2 = first == PREFACE;
        counters.tunnel(is_http2);
        let (read, write) = tokio::io::split(io);
        let io = tokio::io::join(Cursor::new(first).chain(read), write);
        if is_http2 {
            let service = service_fn(move |request| outbound.call(request));
            listen::serve(io, service, begins.cancelled_owned()).await;
            return Ok(());
        }
        Ok(splice(io, connect(&to).await?).await?)
    }
}

/// Reads until the bytes are the preface of HTTP/2, or something else.
async fn first_bytes<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<Vec<u8>> {
    let mut first = vec![0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() && PREFACE.starts_with(&first[..length]) {
        match io.read(&mut first[length..]).await? {
            0 => break,
            more => length += more,
        }
    }
    first.truncate(length);
    Ok(first)
}

async fn connect(to: &str) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_WITHIN, TcpStream::connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Passes bytes on in both directions until both have ended.
async fn splice<I>(mut io: I, mut peer: TcpStream) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let (mut ours, mut theirs) = ([0; 4_096], [0; 4_096]);
    // Either side may speak first.
    let first = timeout(FIRST_BYTES_WITHIN, async {
        tokio::select! {
            read = io.read(&mut ours) => read.map(|count| (count, true)),
            read = peer.read(&mut theirs) => read.map(|count| (count, false)),
        }
    });
    match first.await?? {
        (0, true) => return peer.shutdown().await,
        (0, false) => return io.shutdown().await,
        (count, true) => peer.write_all(&ours[..count]).await?,
        (count, false) => io.write_all(&theirs[..count]).await?,
    }
    tokio::io::copy_bidirectional(&mut io, &mut peer).await.map(|_| ())
}
