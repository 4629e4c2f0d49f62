//! Opens a connection and the stream of rules: name lookup, files, connection, TLS, hello.
//!
//! Files are read for every connection, so renewed certificates and tokens need no restart. Lookups and file
//! reads run on separate threads, and each step has a limit. The token is sent only to control planes and
//! removed from all texts of the server, which may echo it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use damper_core::feature;
use damper_endpoint::{Access, Opening, Token, address, problem};
use damper_proto::v1;
use damper_proto::v1::client_message::Kind as FromUs;
use damper_proto::v1::distribution_client::DistributionClient;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Uri;
use tonic::{Code, Request, Status, Streaming};
use tower_service::Service;

use super::applier::Position;
use super::channel::SafeChannel;
use super::reconnect::{ReconnectStep, Replica, Replicas};
use super::refusals::at_most;
use super::stream::message;
use super::{ControlContext, SDK_VERSION, mode_to_wire};
use crate::background::names::Names;
use crate::background::worker::TimedThread;

/// Limit of each step: lookup, files, connection with TLS handshake.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// Limit of all steps, including hello and response headers.
pub(crate) const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Messages queued for a server that does not read.
const OUTBOX: usize = 16;

/// Sending and receiving half of a stream.
pub(super) type StreamHalves = (mpsc::Sender<v1::ClientMessage>, Streaming<v1::ServerMessage>);

/// Reason why there is no stream.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The server denies access; an operator must act.
    Denied(Code, String),
    /// Any other reason.
    Failed(String),
}

/// Opens connections, one after another.
#[derive(Debug, Default)]
pub(crate) struct Connector {
    names: Names,
    /// By endpoint: files read for one do not apply to another.
    files: HashMap<Uri, TimedThread<Result<Opening, String>>>,
    /// The token sent last.
    token: Option<Token>,
}

impl Connector {
    /// Returns the replica to try, or the endpoint whose lookup failed, with the problem; `None` without
    /// endpoints.
    pub(crate) async fn next(
        &mut self,
        replicas: &mut Replicas,
    ) -> Option<Result<Replica, (String, String)>> {
        loop {
            let endpoint = match replicas.turn()? {
                ReconnectStep::Ask(replica) => return Some(Ok(replica)),
                ReconnectStep::LookUp(endpoint) => endpoint,
            };
            let (host, port) = (address::host(&endpoint), address::port(&endpoint));
            match self.names.look_up(host, port, STEP_WITHIN).await {
                Ok(addresses) if addresses.is_empty() => {
                    return Some(Err((endpoint.to_string(), "name has no address".to_owned())));
                }
                Ok(addresses) => replicas.found(&endpoint, addresses),
                Err(problem) => return Some(Err((endpoint.to_string(), problem))),
            }
        }
    }

    /// Opens a stream and sends the hello.
    ///
    /// # Errors
    /// The reason why there is no stream.
    pub(super) async fn open(
        &mut self,
        shared: &Arc<ControlContext>,
        replica: &Replica,
    ) -> Result<StreamHalves, ConnectError> {
        match tokio::time::timeout(OPEN_WITHIN, self.begin(shared, replica)).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(ConnectError::Failed(format!("the control plane did not answer within {OPEN_WITHIN:?}")))
            }
        }
    }

    async fn begin(
        &mut self,
        shared: &Arc<ControlContext>,
        replica: &Replica,
    ) -> Result<StreamHalves, ConnectError> {
        let channel = self.connect(&shared.settings.access, replica).await?;
        let (outbox, messages) = mpsc::channel(OUTBOX);
        outbox.try_send(message(FromUs::Hello(hello(shared)))).map_err(|error| error.to_string())?;
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.bearer());
        }
        let answer = DistributionClient::new(channel).subscribe(request).await;
        let is_tls = address::is_tls(&replica.endpoint);
        let has_certificate = shared.settings.access.has_certificate();
        let inbox = answer.map_err(|status| match lost(&status, is_tls, has_certificate) {
            Some(hint) => ConnectError::Failed(format!("{}; {hint}", status.message())),
            None => self.error_of(&status),
        })?;
        Ok((outbox, inbox.into_inner()))
    }

    /// Connects to a replica.
    ///
    /// # Errors
    /// A file cannot be used, or there is no connection.
    pub(crate) async fn connect(
        &mut self,
        access: &Access,
        replica: &Replica,
    ) -> Result<SafeChannel, String> {
        let Opening { endpoint, token } = self.read(access, &replica.endpoint).await?;
        let connecting = endpoint.connect_timeout(STEP_WITHIN);
        let connected = connecting.connect_with_connector(Dial(replica.address)).await;
        let channel = connected
            .map_err(|error| problem::of(&error).unwrap_or_else(|| problem::with_sources(&error)))?;
        self.token = token;
        Ok(SafeChannel(channel))
    }

    /// Reads the TLS and token files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) async fn read(&mut self, access: &Access, endpoint: &Uri) -> Result<Opening, String> {
        if !access.reads_files(endpoint) {
            return access.open(endpoint);
        }
        let files = self.files.entry(endpoint.clone()).or_default();
        let (access, endpoint) = (access.clone(), endpoint.clone());
        let reading = files.within(STEP_WITHIN, move || access.open(&endpoint));
        reading.await.map_err(|problem| format!("TLS and token files: {problem}"))?
    }

    /// Converts a status from the server, or a broken connection.
    pub(super) fn error_of(&self, status: &Status) -> ConnectError {
        error_of(status, self.token.as_ref())
    }

    /// Removes the token from a text of the server.
    pub(super) fn hide(&self, text: &str) -> String {
        hide(text, self.token.as_ref())
    }

    /// Returns the token sent last.
    pub(crate) fn shown(&self) -> Option<&Token> {
        self.token.as_ref()
    }
}

impl From<String> for ConnectError {
    fn from(problem: String) -> Self {
        Self::Failed(problem)
    }
}

/// Converts a status from the server, or a broken connection. The text does not contain the token.
pub(crate) fn error_of(status: &Status, token: Option<&Token>) -> ConnectError {
    if let Some(problem) = std::error::Error::source(status).and_then(problem::of) {
        return ConnectError::Failed(problem);
    }
    let words = hide(status.message(), token);
    let advice = match (status.code(), token) {
        (Code::Unauthenticated, None) => "set a token (Options::token_file, DAMPER_TOKEN_FILE)",
        (Code::Unauthenticated, Some(_)) => "check the token (Options::token_file, DAMPER_TOKEN_FILE)",
        (Code::PermissionDenied, _) => "use a token with role agent or a client certificate for this service",
        (Code::Unimplemented, _) => {
            let problem = "not a Damper control plane; check the port";
            let words = if words.is_empty() { words } else { format!(": {words}") };
            return ConnectError::Failed(format!("{problem} (Unimplemented{words})"));
        }
        (code, _) => return ConnectError::Failed(format!("{code:?}: {words}")),
    };
    let code = status.code();
    ConnectError::Denied(code, format!("access denied by the control plane: {code:?}: {words}; {advice}"))
}

/// Removes the token from a text of the server.
pub(crate) fn hide(text: &str, token: Option<&Token>) -> String {
    token.map_or_else(|| text.to_owned(), |token| token.hide_in(text))
}

/// Returns a hint for a connection that closed before its first response.
fn lost(status: &Status, is_tls: bool, has_certificate: bool) -> Option<&'static str> {
    let error = std::error::Error::source(status)?;
    if problem::of(error).is_some() {
        return None;
    }
    problem::of_lost(error, is_tls, has_certificate)
}

/// Connects to one address, for any name of the endpoint.
#[derive(Clone, Copy, Debug)]
struct Dial(SocketAddr);

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self(address) = *self;
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

fn hello(shared: &ControlContext) -> v1::Hello {
    let status = shared.status.borrow().clone();
    let (position, refused) = {
        let applier = shared.applier();
        (applier.position().cloned(), at_most(applier.refused(), applier.refused_count()))
    };
    let Position { epoch, revision, commit } = position.unwrap_or_default();
    v1::Hello {
        identity: Some((&shared.settings.identity).into()),
        sdk_version: SDK_VERSION.to_owned(),
        features: feature::ALL.iter().map(|&name| name.to_owned()).collect(),
        epoch,
        revision,
        commit: Some(commit),
        refused,
        source: v1::Source::from(status.source).into(),
        serves: shared.engine.serves(),
        override_mode: mode_to_wire(status.override_mode),
        via: if shared.settings.is_proxy { v1::Via::Proxy } else { v1::Via::Unspecified }.into(),
    }
}
