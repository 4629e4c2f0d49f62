//! Makes a connection to an endpoint: TCP, TLS where the target asks for it, HTTP/2.
//!
//! Files of TLS are read for every connection, so that renewed certificates are used without a restart. A peer that
//! vanishes is found out by the system (keep-alive and user time-out of TCP): pings of HTTP/2 are taken for abuse by
//! some servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use damper_endpoint::OneTask;
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::client::legacy::connect::HttpConnector;
#[cfg(feature = "tls")]
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
#[cfg(feature = "tls")]
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::Uri;
use tower_service::Service;

use super::endpoint::Sender;

/// TCP and TLS have so long.
const WITHIN: Duration = Duration::from_secs(5);
/// A peer that says nothing for so long is asked by TCP whether it is there, and what it does not acknowledge for so
/// long is lost.
const VANISHED_AFTER: Duration = Duration::from_secs(20);

/// Ends when the connection takes no more requests, with an error where it broke. What is under way then goes on.
pub(super) type End = oneshot::Receiver<hyper::Result<()>>;

#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only TLS needs them"))]
    target: Uri,
    #[cfg(feature = "tls")]
    access: Arc<damper_endpoint::Access>,
}

impl Connector {
    pub(super) fn new(target: &Uri, access: Arc<damper_endpoint::Access>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(VANISHED_AFTER));
        tcp.set_keepalive_interval(Some(VANISHED_AFTER / 4));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(VANISHED_AFTER));
        #[cfg(not(feature = "tls"))]
        drop(access);
        Self {
            tcp,
            target: target.clone(),
            #[cfg(feature = "tls")]
            access,
        }
    }

    /// # Errors
    /// Why there is no connection.
    pub(super) async fn connect(&self, address: SocketAddr) -> Result<(Sender, End), String> {
        let connecting = tokio::time::timeout(WITHIN, self.begin(address));
        connecting.await.unwrap_or_else(|_| Err(format!("not connected within {WITHIN:?}")))
    }

    async fn begin(&self, address: SocketAddr) -> Result<(Sender, End), String> {
        let uri = format!("http://{address}").parse::<Uri>().map_err(|error| error.to_string())?;
        let tcp = self.tcp.clone().call(uri).await.map_err(|error| described(&error))?;
        #[cfg(feature = "tls")]
        if damper_endpoint::address::is_tls(&self.target) {
            return greet(self.encrypt(tcp).await?).await;
        }
        greet(tcp).await
    }

    #[cfg(feature = "tls")]
    async fn encrypt(
        &self,
        tcp: TokioIo<TcpStream>,
    ) -> Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>, String> {
        let (access, target) = (Arc::clone(&self.access), self.target.clone());
        let read = crate::aside::aside(move || access.handshake(&target)).await?;
        let (config, name) = read.map_err(|problem| format!("the files of its TLS: {problem}"))?;
        let connecting = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp.into_inner());
        let stream = connecting.await.map_err(|error| described(&error))?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Ok(TokioIo::new(stream)),
            _ => Err("it does not speak HTTP/2 over TLS".to_owned()),
        }
    }
}

async fn greet<T>(stream: T) -> Result<(Sender, End), String>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let task = ConnectionTask::default();
    let mut builder = http2::Builder::new(task.clone());
    let shaken = builder.timer(TokioTimer::new()).handshake(stream).await;
    let (sender, connection) = shaken.map_err(|error| described(&error))?;
    let (tell, end) = oneshot::channel();
    task.execute(async move {
        // Nobody listens any more where the endpoint is gone.
        _ = tell.send(connection.await);
    });
    Ok((sender, end))
}

/// Runs all parts of one connection.
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

fn described(error: &(dyn std::error::Error + 'static)) -> String {
    damper_endpoint::problem::of(error).unwrap_or_else(|| damper_endpoint::problem::with_sources(error))
}
