//! Opening a stream: the name's addresses, the files, the connection, TLS, the hello.
//!
//! Files are read again for every stream, so that renewed certificates and tokens are used without a restart. Names
//! and files are read on threads beside the runtime; each step has a limit. The token is shown to this method alone,
//! and is taken out of all that a server says, which may say it back.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use damper_core::feature;
use damper_endpoint::{Opening, Token, address, problem};
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
use super::reconnect::Replica;
use super::stream::{at_most, message};
use super::{ControlContext, SDK_VERSION, mode_to_wire};
use crate::aside::TimedThread;
use crate::names::Names;

/// A name's addresses; the files; the connection with its TLS handshake: each has so long.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// All of it, with the hello and the answer's headers.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Messages that wait for a server that is not reading.
const OUTBOX: usize = 16;

/// Both ends of a stream.
pub(super) type StreamHalves = (mpsc::Sender<v1::ClientMessage>, Streaming<v1::ServerMessage>);

/// Why there is no stream, or none any more.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The server does not let us in: only a person can change that.
    Denied(Code, String),
    /// Anything else.
    Failed(String),
}

/// What opens streams, one after another.
#[derive(Debug, Default)]
pub(super) struct Connector {
    names: Names,
    /// By endpoint as well: what was read for one is of no use to another.
    files: HashMap<Uri, TimedThread<Result<Opening, String>>>,
    /// What was shown last.
    token: Option<Token>,
}

impl Connector {
    /// The addresses of an endpoint.
    ///
    /// # Errors
    /// Why it has none.
    pub(super) async fn look_up(&mut self, endpoint: &Uri) -> Result<Vec<SocketAddr>, String> {
        self.names.look_up(address::host(endpoint), address::port(endpoint), STEP_WITHIN).await
    }

    /// A stream with the hello said.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn open(
        &mut self,
        shared: &Arc<ControlContext>,
        replica: &Replica,
    ) -> Result<StreamHalves, ConnectError> {
        match tokio::time::timeout(OPEN_WITHIN, self.begin(shared, replica)).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError::Failed(format!("no answer within {OPEN_WITHIN:?}"))),
        }
    }

    async fn begin(
        &mut self,
        shared: &Arc<ControlContext>,
        replica: &Replica,
    ) -> Result<StreamHalves, ConnectError> {
        let Opening { endpoint, token } = self.read(shared, &replica.endpoint).await?;
        let connecting = endpoint.connect_timeout(STEP_WITHIN);
        let connected = connecting.connect_with_connector(Dial(replica.address)).await;
        let channel = connected
            .map_err(|error| problem::of(&error).unwrap_or_else(|| problem::with_sources(&error)))?;
        let (outbox, messages) = mpsc::channel(OUTBOX);
        outbox.try_send(message(FromUs::Hello(hello(shared)))).map_err(|error| error.to_string())?;
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(token) = &token {
            request.metadata_mut().insert("authorization", token.bearer());
        }
        self.token = token;
        let answer = DistributionClient::new(SafeChannel(channel)).subscribe(request).await;
        let is_tls = address::is_tls(&replica.endpoint);
        let has_certificate = shared.settings.access.has_certificate();
        let inbox = answer.map_err(|status| match lost(&status, is_tls, has_certificate) {
            Some(hint) => ConnectError::Failed(format!("{}; {hint}", status.message())),
            None => self.said(&status),
        })?;
        Ok((outbox, inbox.into_inner()))
    }

    /// What the files of TLS and token hold now.
    ///
    /// # Errors
    /// Why they are of no use.
    pub(super) async fn read(
        &mut self,
        shared: &Arc<ControlContext>,
        endpoint: &Uri,
    ) -> Result<Opening, String> {
        if !shared.settings.access.reads_files(endpoint) {
            return shared.settings.access.open(endpoint);
        }
        let files = self.files.entry(endpoint.clone()).or_default();
        let (reader, endpoint) = (Arc::clone(shared), endpoint.clone());
        let reading = files.within(STEP_WITHIN, move || reader.settings.access.open(&endpoint));
        reading.await.map_err(|problem| format!("the files of its TLS and token: {problem}"))?
    }

    /// What a server said instead of an answer, or what broke the connection.
    pub(super) fn said(&self, status: &Status) -> ConnectError {
        if let Some(problem) = std::error::Error::source(status).and_then(problem::of) {
            return ConnectError::Failed(problem);
        }
        let words = self.hide(status.message());
        let advice = match (status.code(), &self.token) {
            (Code::Unauthenticated, None) => "a token is needed (Options::token_file, DAMPER_TOKEN_FILE)",
            (Code::Unauthenticated, Some(_)) => {
                "is the token valid? (Options::token_file, DAMPER_TOKEN_FILE)"
            }
            (Code::PermissionDenied, _) => {
                "it takes a token of the role agent, or a client certificate, for this service"
            }
            (Code::Unimplemented, _) => {
                let problem = "what answers there is no control plane of Damper's; is the port right?";
                let words = if words.is_empty() { words } else { format!(": {words}") };
                return ConnectError::Failed(format!("{problem} (Unimplemented{words})"));
            }
            (code, _) => return ConnectError::Failed(format!("{code:?}: {words}")),
        };
        let code = status.code();
        ConnectError::Denied(
            code,
            format!("the control plane does not let this process in: {code:?}: {words}; {advice}"),
        )
    }

    /// A text of a server's without the token.
    pub(super) fn hide(&self, text: &str) -> String {
        self.token.as_ref().map_or_else(|| text.to_owned(), |token| token.hide_in(text))
    }

    /// What was shown last.
    pub(super) fn shown(&self) -> Option<&Token> {
        self.token.as_ref()
    }
}

impl From<String> for ConnectError {
    fn from(problem: String) -> Self {
        Self::Failed(problem)
    }
}

/// A connection that ended before it answered.
fn lost(status: &Status, is_tls: bool, has_certificate: bool) -> Option<&'static str> {
    let error = std::error::Error::source(status)?;
    if problem::of(error).is_some() {
        return None;
    }
    problem::of_lost(error, is_tls, has_certificate)
}

/// Connects to one address, whichever name the endpoint has.
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
    }
}
