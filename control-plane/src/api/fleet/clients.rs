//! Lists the connected clients and their state, in pages.

use std::sync::Arc;

use damper_proto::v1;
use prost::Message as _;

use crate::api::page;
use crate::api::page::PAGE_BYTES;
use crate::cluster::Cluster;
use crate::push::sessions::Ordered;
use crate::state::error::ApiError;
use crate::write::digest::Digest;

/// The most rejected entries, and the most entries off for lack of a feature, listed per client. The others
/// are counted.
const LISTED: usize = 20;
/// Default page size.
const DEFAULT_SIZE: u32 = 1000;

pub(crate) async fn list(
    cluster: &Arc<Cluster>,
    request: v1::ListClientsRequest,
) -> Result<v1::ListClientsResponse, ApiError> {
    let size = page::size(if request.page_size == 0 { DEFAULT_SIZE } else { request.page_size })?;
    let question = question(&request);
    let start = start(question, &request.page_token)?;
    cluster.off_runtime(move |cluster| Ok(page(cluster, &request, question, start, size))).await
}

fn page(
    cluster: &Cluster,
    request: &v1::ListClientsRequest,
    question: u64,
    start: Option<Ordered>,
    size: usize,
) -> v1::ListClientsResponse {
    let table = cluster.fleet.table();
    let sessions = cluster.fleet.hub.clients(&request.service, &request.cluster);
    let first = start.map_or(0, |start| sessions.partition_point(|(place, _)| *place <= start));
    let mut response = v1::ListClientsResponse {
        clients: Vec::new(),
        revision: table.revision(),
        epoch: table.epoch().to_string(),
        missing_replicas: cluster.peers.missing(),
        next_page_token: String::new(),
        total: sessions.len() as u64,
    };
    let mut bytes = 0;
    let rest = sessions.iter().skip(first).map(|(_, session)| session);
    for client in cluster.fleet.hub.described(rest, &table, LISTED).take(size) {
        bytes += client.encoded_len();
        response.clients.push(client);
        if bytes > PAGE_BYTES {
            break;
        }
    }
    let end = first + response.clients.len();
    if end < sessions.len()
        && let Some((([service, cluster, instance], number), _)) = end.checked_sub(1).map(|at| &sessions[at])
    {
        let last = [service, cluster, instance, &number.to_string()];
        response.next_page_token = page::token(question, last.map(|name| name.as_str()));
    }
    response
}

/// Returns the fingerprint that binds a page token to its request.
fn question(request: &v1::ListClientsRequest) -> u64 {
    let mut digest = Digest::new();
    for name in [&request.service, &request.cluster] {
        digest.add(&(name.len() as u64).to_le_bytes());
        digest.add(name.as_bytes());
    }
    digest.value()
}

fn start(question: u64, token: &str) -> Result<Option<Ordered>, ApiError> {
    let Some([service, cluster, instance, number]) = page::start(question, token)? else { return Ok(None) };
    let number = number.parse().map_err(|_| ApiError::fault("page_token", "is not a token of this list"))?;
    Ok(Some(([service, cluster, instance], number)))
}
