//! The peer of the control plane: a tonic server that has the same streams and nothing else.
//!
//! It answers a greeting with a snapshot of one rule, sends every stream the same delta when it is told to, and reads the
//! answers. No table, no store, no counts: what the transport alone costs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use damper_proto::v1::distribution_server::{Distribution, DistributionServer};
use damper_proto::v1::{self, client_message, server_message};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::rules::rule;
use super::server::{certificate_in, key_in};
use crate::process::answer;

/// Whoever greets under this name is no client: the delta goes out to all others.
pub(super) const TRIGGER: &str = "trigger";

type Answer = Result<v1::ServerMessage, Status>;

/// Serves until it is killed; prints where. With a folder it uses the certificate there.
///
/// # Errors
/// There is no free port, or no certificate.
pub async fn serve(folder: Option<&Path>) -> Result<()> {
    let mut server = Server::builder();
    if let Some(folder) = folder {
        let certificate = std::fs::read(certificate_in(folder))?;
        let key = std::fs::read(key_in(folder))?;
        server = server.tls_config(ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)))?;
    }
    // What a server is told of no-delay does not reach connections that somebody else accepts.
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
    answer(&incoming.local_addr()?.to_string())?;
    let streams = Streams { open: Arc::default(), rule: distributed(&rule("*", "late")?) };
    let server = server.add_service(DistributionServer::new(streams));
    Ok(server.serve_with_incoming(incoming).await?)
}

struct Streams {
    open: Arc<Mutex<Vec<mpsc::Sender<Answer>>>>,
    rule: v1::DistributedRule,
}

#[tonic::async_trait]
impl Distribution for Streams {
    type SubscribeStream = ReceiverStream<Answer>;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut said = request.into_inner();
        let Some(v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }) =
            said.message().await?
        else {
            return Err(Status::invalid_argument("the first message is no greeting"));
        };
        let (say, answers) = mpsc::channel(4);
        if hello.identity.is_some_and(|identity| identity.instance == TRIGGER) {
            let delta = v1::Delta { changed: vec![self.rule.clone()], ..Default::default() };
            self.send(&message(2, server_message::Kind::Delta(delta))).await;
            return Ok(Response::new(ReceiverStream::new(answers)));
        }
        let snapshot = v1::Snapshot { rules: vec![self.rule.clone()], last: true, ..Default::default() };
        // There is room for it, and its other end is here.
        let _ = say.try_send(Ok(message(1, server_message::Kind::Snapshot(snapshot))));
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(say);
        tokio::spawn(async move { while let Ok(Some(_)) = said.message().await {} });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

impl Streams {
    async fn send(&self, message: &v1::ServerMessage) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for stream in open {
            // One that is gone needs nothing more.
            let _ = stream.send(Ok(message.clone())).await;
        }
    }
}

fn message(revision: u64, kind: server_message::Kind) -> v1::ServerMessage {
    v1::ServerMessage {
        epoch: "raw".to_owned(),
        revision,
        nonce: revision,
        kind: Some(kind),
        kills: None,
        commit: 0,
    }
}

fn distributed(rule: &v1::Rule) -> v1::DistributedRule {
    let kind = rule.policy.clone().map(v1::distributed_rule::Kind::Policy);
    v1::DistributedRule { key: rule.key.clone(), revision: 1, kind }
}
