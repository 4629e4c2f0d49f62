//! HTTP CONNECT: calls of a service that knows the proxy by a variable alone (gRFC A1).
//!
//! Only what is listed is governed, and names within the cluster. Other connections pass as bytes, and so
//! does what is not HTTP/2 in plaintext: Go's and Java's variables take all HTTPS of a process along.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Cursor};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::{self, Callee};
use crate::context::Contexts;
use crate::counters::{Counters, Tunnel};
use crate::listen;
use crate::lock::lock;
use crate::names::{MAX_NAMES, Names, Used};
use crate::outbound::Outbound;
use damper_sdk::{Damper, Faults, check_name};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, copy_bidirectional, join, split};
use tokio::net::TcpStream;

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time for the CONNECT, and then for the first bytes.
const WITHIN: Duration = Duration::from_secs(5);

/// What all connections of the listener share.
pub(crate) struct Connect {
    config: config::Connect,
    damper: Damper,
    contexts: Arc<Contexts>,
    counters: Arc<Counters>,
    /// By host and port.
    listed: HashMap<String, Outbound>,
    /// Names within the cluster, as calls name them.
    found: Names<Outbound>,
}

/// A CONNECT that was granted.
enum Granted<T> {
    /// To a callee, with its address for what is not HTTP/2.
    Callee(Calls, String),
    /// To any other host: its name, then its connection.
    Other(T),
}

/// The calls to a callee.
enum Calls {
    Listed(Box<Outbound>),
    /// Opened with the first request.
    Found(Used<Outbound>, Callee),
}

type Taken<T> = Mutex<Option<(OnUpgrade, T)>>;

impl Connect {
    /// Returns the listener's callees.
    ///
    /// # Errors
    /// The problems of their names and endpoints.
    pub(crate) fn new(
        config: config::Connect,
        damper: &Damper,
        contexts: &Arc<Contexts>,
        counters: &Arc<Counters>,
    ) -> Result<Self, Faults> {
        let mut listed = HashMap::new();
        for host in &config.callees {
            let outbound = Outbound::new(&host.callee, None, damper, contexts, counters)?;
            listed.insert(host.host.clone(), outbound);
        }
        let (contexts, counters) = (Arc::clone(contexts), Arc::clone(counters));
        Ok(Self { config, damper: damper.clone(), contexts, counters, listed, found: Names::new(MAX_NAMES) })
    }

    /// Serves one connection.
    pub(crate) async fn serve(self: Arc<Self>, stream: TcpStream, goodbye: impl Future<Output = ()>) {
        let Some((upgrade, granted)) = self.granted(stream, open).await else { return };
        let passed = match upgrade.await {
            Ok(upgraded) => self.pass(TokioIo::new(upgraded), granted, goodbye).await,
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = passed {
            tracing::debug!(target: "damper", %error, "tunnel ended");
        }
    }

    /// Answers the requests of a connection until one is granted and opened.
    async fn granted<I, T, F>(&self, io: I, open: impl Fn(Granted<String>) -> F) -> Option<(OnUpgrade, T)>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Result<T, StatusCode>>,
    {
        let taken = Taken::default();
        let service = service_fn(|request: Request<Incoming>| {
            let answered = self.answer(request, &open, &taken);
            async { Ok::<_, Infallible>(answered.await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(WITHIN);
        let served = builder.serve_connection(TokioIo::new(io), service).with_upgrades().await;
        if let Err(error) = served {
            tracing::debug!(target: "damper", %error, "connection for CONNECT ended");
        }
        lock(&taken).take()
    }

    async fn answer<T, F: Future<Output = Result<T, StatusCode>>>(
        &self,
        mut request: Request<Incoming>,
        open: impl Fn(Granted<String>) -> F,
        taken: &Taken<T>,
    ) -> Response<Empty<Bytes>> {
        let authority = request.uri().authority().cloned();
        let granted =
            match authority.filter(|known| request.method() == Method::CONNECT && known.port().is_some()) {
                Some(authority) => self.grant(&authority),
                None => Err(StatusCode::METHOD_NOT_ALLOWED),
            };
        let granted = match granted {
            Ok(granted) => open(granted).await,
            Err(code) => Err(code),
        };
        let mut response = Response::new(Empty::new());
        match granted {
            Ok(granted) => {
                let upgrade = hyper::upgrade::on(&mut request);
                *lock(taken) = Some((upgrade, granted));
            }
            Err(code) => {
                self.counters.tunnel(Tunnel::Refused);
                *response.status_mut() = code;
            }
        }
        response
    }

    fn grant(&self, authority: &Authority) -> Result<Granted<String>, StatusCode> {
        if authority.as_str().contains('@') {
            return Err(StatusCode::BAD_REQUEST);
        }
        let host = config::normal(authority.as_str());
        // Others on the network must not reach whatever this machine does.
        if !self.config.listen.ip().is_loopback() && !self.listed.contains_key(&host) {
            return Err(StatusCode::FORBIDDEN);
        }
        if let Some(calls) = self.callee(authority, &host)? {
            let to = self.config.callees.iter().find(|known| known.host == host);
            let to = to.map_or(host, |known| known.callee.to.clone());
            return Ok(Granted::Callee(calls, to));
        }
        Ok(Granted::Other(host))
    }

    /// Returns the calls to a host that is governed.
    fn callee(&self, authority: &Authority, host: &str) -> Result<Option<Calls>, StatusCode> {
        if let Some(outbound) = self.listed.get(host) {
            return Ok(Some(Calls::Listed(Box::new(outbound.clone()))));
        }
        let Some(name) = self.config.name_in_cluster(authority.host()) else { return Ok(None) };
        // The engine keeps each callee, so it gets one with the first request alone.
        let mut faults = Faults::none();
        check_name("callee", &name, &mut faults);
        faults.or(()).map_err(|_| StatusCode::BAD_REQUEST)?;
        let callee = Callee { name, to: host.to_owned(), external: false, tls: None };
        let used = self.found.enter(host).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        Ok(Some(Calls::Found(used, callee)))
    }

    fn outbound(&self, calls: &Calls) -> Outbound {
        match calls {
            Calls::Listed(outbound) => (**outbound).clone(),
            Calls::Found(used, callee) => {
                let open = || Outbound::new(callee, None, &self.damper, &self.contexts, &self.counters);
                used.open(|| open().expect("the name was checked, and a host with a port is a target"))
                    .clone()
            }
        }
    }

    /// Forgets names that stay unused, without an end.
    pub(crate) async fn tidy(&self) {
        self.found.tidy().await;
    }

    /// Passes what the service sends: calls of HTTP/2 to the callee, all else as bytes.
    /// At `goodbye` callers of HTTP/2 open another tunnel.
    async fn pass<I>(
        &self,
        mut io: I,
        granted: Granted<TcpStream>,
        goodbye: impl Future<Output = ()>,
    ) -> io::Result<()>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (calls, to) = match granted {
            Granted::Callee(calls, to) => (calls, to),
            Granted::Other(mut stream) => {
                self.counters.tunnel(Tunnel::Unlisted);
                return copy_bidirectional(&mut io, &mut stream).await.map(drop);
            }
        };
        let (mut read, write) = split(io);
        let (first, is_http2) = first_bytes(&mut read).await?;
        let mut io = join(Cursor::new(first).chain(read), write);
        if !is_http2 {
            drop(calls);
            self.counters.tunnel(Tunnel::NotHttp2);
            let mut stream = dial(&to).await?;
            return copy_bidirectional(&mut io, &mut stream).await.map(drop);
        }
        self.counters.tunnel(Tunnel::Governed);
        let service = service_fn(|request| self.outbound(&calls).call(request));
        listen::serve(io, service, goodbye).await;
        Ok(())
    }
}

/// Connects what is no callee.
async fn open(granted: Granted<String>) -> Result<Granted<TcpStream>, StatusCode> {
    let host = match granted {
        Granted::Callee(calls, to) => return Ok(Granted::Callee(calls, to)),
        Granted::Other(host) => host,
    };
    dial(&host).await.map(Granted::Other).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    })
}

/// Connects for bytes that pass as they are.
async fn dial(to: &str) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(WITHIN, TcpStream::connect(to)).await.map_err(io::Error::from)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads until it is known whether HTTP/2 follows, and returns that with the bytes.
async fn first_bytes(read: &mut (impl AsyncRead + Unpin)) -> io::Result<(Vec<u8>, bool)> {
    let mut first = Vec::with_capacity(PREFACE.len());
    let reading = async {
        while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
            if read.read_buf(&mut first).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    };
    tokio::time::timeout(WITHIN, reading).await.map_err(io::Error::other)??;
    let is_http2 = first.starts_with(PREFACE);
    Ok((first, is_http2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect() -> Connect {
        let config = config::Connect {
            listen: ([127, 0, 0, 1], 0).into(),
            namespace: None,
            suffix: "svc.cluster.local".to_owned(),
            callees: Vec::new(),
        };
        let contexts = Contexts::new(1);
        Connect::new(config, &Damper::off(), &contexts, &Arc::default()).unwrap()
    }

    async fn granted(connect: &Connect, host: &str) -> Result<Granted<TcpStream>, StatusCode> {
        open(connect.grant(&host.parse().unwrap())?).await
    }

    /// Returns true if the engine has a callee of this name, which it keeps without an end.
    fn knows(connect: &Connect, name: &str) -> bool {
        format!("{:?}", connect.damper).contains(&format!("{name:?}"))
    }

    #[tokio::test]
    async fn name_that_is_no_callee_is_refused() {
        let connect = connect();
        let refused = granted(&connect, &format!("{}:1", "a".repeat(300))).await.err();
        assert_eq!(refused, Some(StatusCode::BAD_REQUEST));
    }

    #[tokio::test]
    async fn channel_opens_with_the_first_request_alone() {
        let connect = connect();
        let tunnel = granted(&connect, "stock:50051").await.unwrap();
        let (near, far) = tokio::io::duplex(1 << 16);
        let passing = connect.pass(far, tunnel, std::future::pending());
        let asking = async {
            let (mut client, connection) = h2::client::handshake(near).await.unwrap();
            let settled = tokio::spawn(connection);
            client = client.ready().await.unwrap();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(connect.found.opened(), 0, "HTTP/2 alone asks for nothing");
            assert!(!knows(&connect, "stock"), "HTTP/2 alone takes no place of the engine");
            let request = Request::post("http://stock/a.B/C").header("content-type", "application/grpc");
            let _response = client.send_request(request.body(()).unwrap(), true).unwrap();
            while connect.found.opened() == 0 {
                tokio::task::yield_now().await;
            }
            assert!(knows(&connect, "stock"));
            settled.abort();
        };
        tokio::select! {
            ended = passing => panic!("{ended:?}"),
            () = asking => {}
        }
    }

    #[tokio::test]
    async fn names_without_tunnels_make_room() {
        let connect = connect();
        let mut tunnels = Vec::new();
        for index in 0..MAX_NAMES {
            tunnels.push(granted(&connect, &format!("s{index}:1")).await.unwrap());
        }
        let refused = granted(&connect, "more:1").await.err();
        assert_eq!(refused, Some(StatusCode::SERVICE_UNAVAILABLE));
        assert!(!knows(&connect, "more"), "a refused tunnel takes no place of the engine");
        tunnels.clear();
        assert!(granted(&connect, "more:1").await.is_ok());
    }
}
