//! `Fleet.ListReplicas`: the replicas of this control plane.

use damper_proto::v1;

use crate::cluster::Cluster;

/// Returns all replicas, by id.
pub(crate) fn list(cluster: &Cluster) -> v1::ListReplicasResponse {
    let count = |streams: usize| u32::try_from(streams).unwrap_or(u32::MAX);
    let table = cluster.fleet.table();
    let own = v1::Replica {
        clients: count(cluster.fleet.hub.own_streams()),
        revision: table.revision(),
        epoch: table.epoch().to_string(),
        unaccepted_store: table.unaccepted.as_ref().map(|found| found.reported(&table)),
        ..cluster.peers.own().clone()
    };
    let others = cluster.peers.all_others().into_iter().map(|other| {
        let clients = count(cluster.fleet.hub.streams_of(&other.id));
        v1::Replica { clients, ..other }
    });
    let mut replicas: Vec<v1::Replica> = others.chain([own]).collect();
    replicas.sort_by(|a, b| a.id.cmp(&b.id));
    v1::ListReplicasResponse { replicas }
}
