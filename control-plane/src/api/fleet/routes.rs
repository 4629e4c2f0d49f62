//! Lists routes with their statistics, in pages.

use std::sync::Arc;

use damper_proto::v1;

use crate::api::filter::ListFilter;
use crate::api::page;
use crate::cluster::Cluster;
use crate::state::error::ApiError;
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::RouteSummary;

pub(crate) async fn list(
    cluster: &Arc<Cluster>,
    request: v1::ListRoutesRequest,
) -> Result<v1::ListRoutesResponse, ApiError> {
    let size = page::size(request.page_size)?;
    let filter = ListFilter::new(request.filter)?;
    let over = RateWindow::read("window", request.window)?;
    // Binds a page token to its request.
    let question = filter.digest() ^ u64::from(request.without_rule);
    let start = page::start(question, &request.page_token)?;
    let work = move |cluster: &Arc<Cluster>| {
        Ok(page(cluster, &filter, (over, request.without_rule), (question, start), size))
    };
    cluster.off_runtime(work).await
}

fn page(
    cluster: &Cluster,
    filter: &ListFilter,
    (over, without_rule): (RateWindow, bool),
    (question, start): (u64, Option<[String; 4]>),
    size: usize,
) -> v1::ListRoutesResponse {
    let table = cluster.fleet.table();
    let rows = cluster.fleet.stats.rows_over(over, &table);
    let accepted: Vec<&RouteSummary> = rows
        .iter()
        .map(|row| &**row)
        .filter(|row| !without_rule || row.stats.rule.is_none())
        .filter(|row| filter.accepts_route(&table, row.route.names(), &row.stats))
        .collect();
    let behind = |row: &&RouteSummary| {
        start.as_ref().is_some_and(|start| row.route.names() <= start.each_ref().map(String::as_str))
    };
    let first = accepted.iter().take_while(|row| behind(row)).count();
    let (page, more) = page::page(accepted.iter().skip(first).map(|row| &row.stats), size);
    let last = (first + page.len()).checked_sub(1).map(|last| accepted[last]).filter(|_| more);
    v1::ListRoutesResponse {
        next_page_token: last.map(|row| page::token(question, row.route.names())).unwrap_or_default(),
        routes: page,
        total: accepted.len() as u64,
        missing_replicas: cluster.peers.missing(),
    }
}
