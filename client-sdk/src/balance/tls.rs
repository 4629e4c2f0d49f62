//! TLS to an endpoint. The certificate must match the target, not the endpoint's address.

use std::sync::Arc;
use std::time::Duration;

use damper_endpoint::{Access, address};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Uri;

use super::connect::{WITHIN, described};
use crate::background::worker::TimedThread;

/// How long file contents are reused, so that endpoints that connect together read them once.
const READ_EVERY: Duration = Duration::from_secs(1);

type Settings = (Arc<ClientConfig>, ServerName<'static>);

/// TLS configuration of a target.
pub(super) struct Tls {
    target: Uri,
    access: Arc<Access>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    reading: TimedThread<Result<Settings, String>>,
    last: Option<(Instant, Settings)>,
}

impl Tls {
    /// Returns `None` if the target does not use TLS.
    pub(super) fn of(target: &Uri, access: Arc<Access>) -> Option<Arc<Self>> {
        let files = Mutex::default();
        address::is_tls(target).then(|| Arc::new(Self { target: target.clone(), access, files }))
    }

    /// # Errors
    /// The reason why there is no encrypted connection.
    pub(super) async fn encrypt(&self, tcp: TokioIo<TcpStream>) -> Result<TlsStream<TcpStream>, String> {
        let read = self.settings().await;
        let (config, name) = read.map_err(|problem| format!("TLS files: {problem}"))?;
        let connecting = TlsConnector::from(config).connect(name, tcp.into_inner());
        let stream = connecting.await.map_err(|error| described(&error))?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Ok(stream),
            _ => Err("the endpoint does not support HTTP/2 over TLS".to_owned()),
        }
    }

    async fn settings(&self) -> Result<Settings, String> {
        let mut files = self.files.lock().await;
        if let Some((read, settings)) = &files.last
            && read.elapsed() < READ_EVERY
        {
            return Ok(settings.clone());
        }
        let (access, target) = (Arc::clone(&self.access), self.target.clone());
        let read = move || access.handshake(&target).map(|(config, name)| (Arc::new(config), name));
        let settings = files.reading.within(WITHIN, read).await??;
        files.last = Some((Instant::now(), settings.clone()));
        Ok(settings)
    }
}
