//! `damper.v1.Replicas`: the protocol between the replicas of one control plane.
//!
//! Replicas find each other by their keys in the store ([`damper_store::Membership`]). Each queries every
//! peer ([`peer_set`], [`query`]) and mirrors the peer's clients into its own sessions and statistics
//! ([`mirror`]), so that every answer covers the whole fleet. Each reports only its own clients to its peers
//! ([`answer`]), so that no report is counted twice. [`peers`] lists the peers and the unreachable ones.

pub(crate) mod answer;
pub(crate) mod connect;
pub(crate) mod list;
pub(crate) mod membership;
pub(crate) mod mirror;
pub(crate) mod peer_set;
pub(crate) mod peers;
pub(crate) mod query;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;

use damper_proto::v1;
use futures_core::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use std::path::PathBuf;

use damper_net::tls::TlsReloader;
use tokio_util::sync::CancellationToken;

use crate::auth::Authenticator;
use crate::cluster::peers::Peers;
use crate::push::fleet_state::FleetState;
use crate::state::error::ApiError;

/// The largest message between replicas: a client's report of the largest size, and its envelope.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// This replica and its peers.
pub(crate) struct Cluster {
    pub(crate) fleet: Arc<FleetState>,
    pub(crate) peers: Peers,
    pub(crate) access: Arc<Authenticator>,
    /// `None` without TLS.
    pub(crate) tls: Option<Arc<TlsReloader>>,
    pub(crate) config: PeerConfig,
    /// Cancelled when streams must end.
    pub(crate) stopping: CancellationToken,
    /// Cancelled after the drain; ends the streams to peers.
    pub(crate) ended: CancellationToken,
}

/// The TLS settings for connections to peers.
#[derive(Clone, Debug)]
pub(crate) struct PeerConfig {
    pub(crate) peer_ca: Option<PathBuf>,
    pub(crate) peer_name: Option<String>,
}

impl Cluster {
    /// Runs work that visits all rules, routes or clients: off the runtime, one job at a time.
    pub(crate) async fn off_runtime<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let cluster = self.clone();
        self.fleet.state.worker.run(move |_| work(&cluster)).await
    }
}

/// The service.
pub(crate) struct Replicas {
    cluster: Arc<Cluster>,
}

impl Replicas {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster }
    }
}

#[tonic::async_trait]
impl v1::replicas_server::Replicas for Replicas {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<v1::FollowResponse, Status>> + Send>>;

    async fn follow(
        &self,
        request: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let (out, responses) = mpsc::channel(1);
        tokio::spawn(crate::cluster::answer::serve(self.cluster.clone(), request.into_inner(), out));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}
