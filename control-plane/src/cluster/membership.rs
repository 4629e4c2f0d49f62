//! Joins and leaves the membership list.
//!
//! Leaving has an order, so that peers never get wrong data: first the clients leave, and each is reported
//! until it is gone; then the key is removed, so that no peer waits for this replica; last the streams to
//! peers end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::cluster::peer_set::PeerSet;
use damper_store::Membership;
use tokio::task::JoinSet;

/// The time limit at start for the list of replicas.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// The store did not return the list of replicas in time.
#[derive(Debug, thiserror::Error)]
#[error("the store did not return the list of the control plane's replicas within {seconds} s", seconds = SETTLED_WITHIN.as_secs())]
pub(crate) struct MembershipTimeout;

/// Returns the address for peers; `None` if they need one and the configuration does not set it.
pub(crate) fn address(
    advertise: Option<&str>,
    is_encrypted: bool,
    is_shared: bool,
    local: SocketAddr,
) -> Option<String> {
    if let Some(address) = advertise {
        return Some(address.to_owned());
    }
    let scheme = if is_encrypted { "https" } else { "http" };
    (!is_shared || !local.ip().is_unspecified()).then(|| format!("{scheme}://{local}"))
}

/// Adds this replica to the list if its store is shared, and starts to query the peers. It knows all peers
/// before it serves, so that it never takes its own clients for the whole fleet.
pub(crate) async fn join(
    cluster: &Arc<Cluster>,
    tasks: &mut JoinSet<&'static str>,
) -> Result<Option<Membership>, MembershipTimeout> {
    let id = cluster.peers.id();
    let Some(mut presence) = cluster.fleet.state.store.join(id, cluster.peers.announcement().into()) else {
        return Ok(None);
    };
    if !presence.settled(id, SETTLED_WITHIN).await {
        presence.leave().await;
        return Err(MembershipTimeout);
    }
    tracing::info!(replica = &**id, address = cluster.peers.own().address, "registered this replica");
    let mut peers = PeerSet::of(cluster.clone(), presence.known());
    peers.refresh();
    tasks.spawn(async move {
        peers.run().await;
        "replicas"
    });
    Ok(Some(presence))
}

/// Waits until the clients are gone, then removes this replica from the list.
pub(crate) async fn leave(cluster: &Cluster, presence: Option<Membership>) {
    let mut moves = cluster.fleet.hub.moves();
    while cluster.fleet.hub.own_streams() > 0 && moves.changed().await.is_ok() {}
    if let Some(presence) = presence {
        presence.leave().await;
    }
    cluster.ended.cancel();
}
