//! Connections to the control plane for jobs, one replica after another.
//!
//! The steps, waits and files are those of the stream of rules, see `control`. A trait, so that a test can
//! connect without a socket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use damper_endpoint::{Access, Token};
use damper_proto::v1::jobs_client::JobsClient;
use tonic::Request;
use tonic::transport::Uri;

use crate::control::{ConnectError, Connector, OPEN_WITHIN, Replicas, SafeChannel, error_of, hide};

/// A future on the heap.
pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Connects to the control plane, each time to another replica if possible.
pub(super) trait Dial: fmt::Debug + Send {
    /// Connects to the next replica that accepts.
    fn connect(&mut self) -> Boxed<'_, Result<Line, Missed>>;

    /// Returns the wait before the next connection, after one that ended so.
    fn wait_after(&mut self, end: LineEnd) -> Duration;
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Line {
    channel: SafeChannel,
    token: Option<Token>,
}

/// No replica accepts a connection.
#[derive(Clone, Debug)]
pub(super) struct Missed {
    pub(super) problem: String,
    /// Time before the next attempt.
    pub(super) wait: Duration,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineEnd {
    /// It was of use for this time.
    Lasted(Duration),
    /// The server denied access.
    Denied,
    /// It was of no use.
    Failed,
}

impl Line {
    pub(super) fn new(channel: SafeChannel, token: Option<Token>) -> Self {
        Self { channel, token }
    }

    pub(super) fn client(&self) -> JobsClient<SafeChannel> {
        JobsClient::new(self.channel.clone())
    }

    /// Returns a request with the token.
    pub(super) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.bearer());
        }
        request
    }

    /// Removes the token from a text of the server.
    pub(super) fn hide(&self, text: &str) -> String {
        hide(text, self.token.as_ref())
    }

    /// Describes an error of the server, without the token.
    pub(super) fn error_of(&self, status: &tonic::Status) -> ConnectError {
        error_of(status, self.token.as_ref())
    }
}

/// Connects to the addresses of the endpoints.
#[derive(Debug)]
pub(super) struct ToReplicas {
    access: Access,
    replicas: Replicas,
    connector: Connector,
}

impl ToReplicas {
    pub(super) fn new(access: Access, endpoints: Vec<Uri>) -> Self {
        Self { access, replicas: Replicas::new(endpoints), connector: Connector::default() }
    }

    async fn connect(&mut self) -> Result<Line, Missed> {
        loop {
            let problem = match self.connector.next(&mut self.replicas).await {
                None => "no endpoints".to_owned(),
                Some(Err((endpoint, problem))) => format!("{endpoint}: {problem}"),
                Some(Ok(replica)) => {
                    let connecting = self.connector.connect(&self.access, &replica);
                    match tokio::time::timeout(OPEN_WITHIN, connecting).await {
                        Ok(Ok(channel)) => return Ok(Line::new(channel, self.connector.shown().cloned())),
                        Ok(Err(problem)) => format!("{replica}: {problem}"),
                        Err(_) => format!("{replica}: no connection within {OPEN_WITHIN:?}"),
                    }
                }
            };
            let wait = self.replicas.after_miss();
            if !wait.is_zero() {
                return Err(Missed { problem, wait });
            }
        }
    }
}

impl Dial for ToReplicas {
    fn connect(&mut self) -> Boxed<'_, Result<Line, Missed>> {
        Box::pin(self.connect())
    }

    fn wait_after(&mut self, end: LineEnd) -> Duration {
        match end {
            LineEnd::Lasted(time) => self.replicas.after_stream(time),
            LineEnd::Denied => self.replicas.after_denial(),
            LineEnd::Failed => self.replicas.after_miss(),
        }
    }
}
