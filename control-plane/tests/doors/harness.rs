//! A server on free ports, and clients over raw sockets.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use damper_control_plane::{Pem, ServeError, Server, ServerConfig, StoreUrl, TlsConfig};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{RwLock, RwLockReadGuard, oneshot};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tonic::transport::{Channel, Endpoint};

use crate::certificates::Pair;

/// Waits for an event; panics after the time limit.
pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(90), event).await.expect("it did not happen in time")
}

/// Locked shared by every server, exclusively by tests that count resources of the process.
pub(crate) static HOUSE: RwLock<()> = RwLock::const_new(());

/// A server that runs until it is dropped with its runtime.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Without TLS unless a test sets it.
    pub(crate) metrics: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
    _folder: TempDir,
    _in_the_house: Option<RwLockReadGuard<'static, ()>>,
}

pub(crate) fn with_pair(pair: &Pair) -> TlsConfig {
    TlsConfig::new(Pem::Text(pair.certificate.clone()), Pem::Text(pair.key.clone()))
}

/// Starts a server in parallel to those of other tests; one at a time in each test.
pub(crate) async fn start(adjust: impl FnOnce(&mut ServerConfig)) -> Running {
    let house = HOUSE.read().await;
    Running { _in_the_house: Some(house), ..start_alone(adjust).await }
}

/// Starts a server for a test that needs the process alone.
pub(crate) async fn start_alone(adjust: impl FnOnce(&mut ServerConfig)) -> Running {
    let folder = TempDir::new().unwrap();
    let store: StoreUrl = format!("sled:{}", folder.path().join("store").display()).parse().unwrap();
    let mut settings = ServerConfig::new(store);
    settings.listen.set_port(0);
    settings.metrics_listen = Some(settings.listen);
    settings.metrics_plaintext = true;
    adjust(&mut settings);
    let server = Server::bind(settings).await.unwrap();
    let (address, metrics) = (server.local_addr(), server.metrics_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running { address, metrics, stop, task, _folder: folder, _in_the_house: None }
}

impl Running {
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        soon(self.task).await.unwrap().unwrap();
    }

    /// Returns one value of the plain metrics port; panics if it is absent.
    pub(crate) async fn figure(&self, series: &str) -> f64 {
        let text = self.scrape().await;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
    }

    /// Waits until a value meets the condition.
    pub(crate) async fn figure_that(&self, series: &str, is_so: impl Fn(f64) -> bool) {
        soon(async {
            while !is_so(self.figure(series).await) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }

    /// Waits until the number of hits of a limit meets the condition.
    pub(crate) async fn hits_that(&self, limit: &str, is_so: impl Fn(f64) -> bool) {
        self.figure_that(&format!("damper_limit_hits_total{{limit=\"{limit}\"}}"), is_so).await;
    }

    async fn scrape(&self) -> String {
        // The server renders the text at most once a second.
        let stream = TcpStream::connect(self.metrics).await.unwrap();
        exchange(stream, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap()
    }
}

/// Sends bytes and reads until the end.
pub(crate) async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, sent: &[u8]) -> io::Result<String> {
    let (mut from, mut to) = tokio::io::split(stream);
    let mut answer = Vec::new();
    let say = async {
        to.write_all(sent).await?;
        to.flush().await
    };
    let (sent, received) = soon(async { tokio::join!(say, from.read_to_end(&mut answer)) }).await;
    // A peer may answer before it has read everything, and close with bytes unread.
    if answer.is_empty() {
        received.and(sent)?;
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

pub(crate) const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

pub(crate) async fn shake(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    name: &'static str,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    soon(TlsConnector::from(config.clone()).connect(name.try_into().unwrap(), stream)).await
}

/// Makes a handshake and a request; returns the answer or an error of either.
pub(crate) async fn livez(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<String> {
    exchange(shake(address, config, "localhost").await?, LIVEZ).await
}

/// Returns a gRPC channel over TLS.
pub(crate) async fn channel(address: SocketAddr, config: &Arc<ClientConfig>) -> Channel {
    let config = config.clone();
    let connect = tower::service_fn(move |_: http::Uri| {
        let config = config.clone();
        async move { shake(address, &config, "localhost").await.map(TokioIo::new) }
    });
    // The connector encrypts; with https the channel would use a connector of its own.
    let endpoint = Endpoint::from_shared(format!("http://localhost:{}", address.port())).unwrap();
    soon(endpoint.connect_with_connector(connect)).await.unwrap()
}
