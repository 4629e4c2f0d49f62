//! Lists the endpoints of callees, in pages.

use std::sync::Arc;

use damper_core::{Faults, key};
use damper_proto::v1;

use crate::api::page;
use crate::cluster::Cluster;
use crate::state::error::ApiError;
use crate::write::digest::Digest;

pub(crate) async fn list(
    cluster: &Arc<Cluster>,
    request: v1::ListEndpointsRequest,
) -> Result<v1::ListEndpointsResponse, ApiError> {
    let v1::ListEndpointsRequest { callee_service, page_size, page_token } = request;
    if !callee_service.is_empty() {
        let mut faults = Faults::none();
        key::check_name("callee_service", &callee_service, &mut faults);
        faults.or(()).map_err(ApiError::Faults)?;
    }
    let size = page::size(page_size)?;
    let question = Digest::hash(callee_service.as_bytes());
    let start = page::start(question, &page_token)?;
    cluster.off_runtime(move |cluster| Ok(page(cluster, &callee_service, (question, start), size))).await
}

fn page(
    cluster: &Cluster,
    callee: &str,
    (question, start): (u64, Option<[String; 1]>),
    size: usize,
) -> v1::ListEndpointsResponse {
    let all = cluster.fleet.stats.endpoints(callee);
    let first = start.map_or(0, |[start]| all.partition_point(|callee| callee.callee_service <= start));
    let (page, more) = page::page(all.iter().skip(first), size);
    let last = page.last().filter(|_| more).map(|callee| callee.callee_service.as_str());
    v1::ListEndpointsResponse {
        next_page_token: last.map(|name| page::token(question, [name])).unwrap_or_default(),
        callees: page,
        total: all.len() as u64,
        missing_replicas: cluster.peers.missing(),
    }
}
