//! How a replica takes its place among the others, and how it leaves.
//!
//! It leaves in an order in which nobody is told anything wrong: first its clients go, each told where they are until it
//! is gone; then its key is removed, so that nobody waits for it; last the streams end on which the others follow it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::cluster::peer_set::PeerSet;
use damper_store::Membership;
use tokio::task::JoinSet;

/// How long a start waits for the store to tell who else is there.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// The store has not told who else is there.
#[derive(Debug, thiserror::Error)]
#[error("it does not tell within {} s which other replicas there are", SETTLED_WITHIN.as_secs())]
pub(crate) struct MembershipTimeout;

/// Where others reach this replica; none where they must be told and the settings do not say it.
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

/// Makes this replica known where its store is shared, and begins to follow the others. It knows of each before anybody
/// can ask it, so that it never takes its own clients for the whole fleet.
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
    tracing::info!(replica = &**id, address = cluster.peers.own().address, "this replica is known to others");
    let mut everybody = PeerSet::of(cluster.clone(), presence.known());
    everybody.look();
    tasks.spawn(async move {
        everybody.run().await;
        "replicas"
    });
    Ok(Some(presence))
}

/// Waits until the clients are gone, then takes this replica out.
pub(crate) async fn leave(cluster: &Cluster, presence: Option<Membership>) {
    let mut moves = cluster.fleet.hub.moves();
    while cluster.fleet.hub.own_streams() > 0 && moves.changed().await.is_ok() {}
    if let Some(presence) = presence {
        presence.leave().await;
    }
    cluster.ended.cancel();
}
