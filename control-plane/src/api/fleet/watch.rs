//! Streams the fleet: everything first, then the changes of each interval.
//!
//! A watcher keeps the last sent state and sends the difference to the current state, part by part as the
//! client reads. There is no queue: a slow client gets fewer states, not old ones.
//!
//! While there is a watcher, clients report more often; for a watch of one route, only the clients that
//! report it. Each interval has a message even without a change, so that a dead connection is noticed.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_proto::{convert, v1};
use prost::Message as _;
use tokio::time::{Instant, sleep_until};

use crate::api::filter::ListFilter;
use crate::api::response_stream::{Gone, Out};
use crate::cluster::Cluster;
use crate::push::delivery::{AllReached, Reached};
use crate::push::watching::WatchGuard;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::stats::Route;
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::RouteSummary;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// The most bytes of rows in one message. It is small because a client that does not read holds two messages,
/// and because a browser can then show the first rows early.
const MESSAGE_BYTES: usize = 32 << 10;
/// Upper bound of the bytes of a rule view, without the rule itself.
const RULE_VIEW_BYTES: usize = 32;

/// The options of a watch request.
pub(crate) struct WatchOptions {
    interval: Duration,
    filter: ListFilter,
    rules: bool,
    over: RateWindow,
    route: Option<Route>,
}

impl WatchOptions {
    pub(crate) fn read(request: v1::WatchRequest) -> Result<Self, ApiError> {
        let interval = match request.interval {
            None => DEFAULT_INTERVAL,
            Some(interval) => convert::length(interval)
                .filter(|interval| (MIN_INTERVAL..=MAX_INTERVAL).contains(interval))
                .ok_or_else(|| ApiError::fault("interval", "must be between 1s and 60s"))?,
        };
        let over = match &request.route {
            Some(_) => RateWindow::read_of_one("window", request.window)?,
            None => RateWindow::read("window", request.window)?,
        };
        let route = request.route.as_ref().map(Route::read).transpose();
        let route = route.map_err(|faults| ApiError::at("route", faults))?;
        Ok(Self { interval, filter: ListFilter::new(request.filter)?, rules: request.rules, over, route })
    }

    /// Returns the statistics of the time before the watch.
    fn past(&self, cluster: &Cluster) -> Vec<v1::Past> {
        match &self.route {
            _ if !self.filter.accepts_all() => Vec::new(),
            Some(route) => cluster.fleet.stats.past_of(route),
            None => cluster.fleet.stats.past_of_all(),
        }
    }
}

/// The last state sent to a watcher. Its parts are shared with all other watchers.
struct SentState {
    /// Start of the watch.
    since: Instant,
    last: Option<Now>,
}

/// Routes and rules at one moment.
struct Now {
    table: Arc<Snapshot>,
    rows: Arc<[Arc<RouteSummary>]>,
    /// `None` if the request excludes rules.
    rules: Option<Arc<AllReached>>,
}

/// A change since the last sent state.
enum News<'a> {
    Route(&'a RouteSummary),
    NoRoute(&'a RouteSummary),
    Rule(&'a Reached),
    NoRule(&'a Reached),
}

/// Serves one watcher until it disconnects.
pub(crate) async fn serve(
    cluster: Arc<Cluster>,
    plan: WatchOptions,
    out: Out<v1::WatchResponse>,
) -> Result<(), ApiError> {
    let _watching = match &plan.route {
        Some(route) => WatchGuard::caller(&cluster.fleet, &route.caller_service, &route.caller_cluster),
        None => WatchGuard::everything(&cluster.fleet),
    };
    let mut sent = SentState { since: Instant::now(), last: None };
    let mut next = Instant::now();
    loop {
        tokio::select! {
            () = out.closed() => return Ok(()),
            () = sleep_until(next) => {}
        }
        if sent.update(&cluster, &plan, &out).await?.is_err() {
            return Ok(());
        }
        next = Instant::now() + plan.interval;
    }
}

impl SentState {
    /// Sends the difference between the sent and the current state in one or more messages, each built when
    /// the previous one is accepted.
    async fn update(
        &mut self,
        cluster: &Arc<Cluster>,
        plan: &WatchOptions,
        out: &Out<v1::WatchResponse>,
    ) -> Result<Result<(), Gone>, ApiError> {
        let now = self.now(cluster, plan).await?;
        let past = if self.last.is_none() { plan.past(cluster) } else { Vec::new() };
        let before = self.last.take().filter(|before| before.table.epoch() == now.table.epoch());
        let failures =
            plan.route.as_ref().map(|route| cluster.fleet.stats.failures(route)).unwrap_or_default();
        let head = head(cluster, plan, &now.table);
        let continued = v1::WatchResponse { continued: true, kills: Vec::new(), ..head.clone() };
        let mut message = v1::WatchResponse { reset: before.is_none(), past, failures, ..head };
        let mut room = MESSAGE_BYTES;
        for news in news(before.as_ref(), &now, plan) {
            let size = news.size();
            if size > room {
                room = MESSAGE_BYTES;
                if let Err(gone) = out.send(std::mem::replace(&mut message, continued.clone())).await {
                    return Ok(Err(gone));
                }
            }
            room = room.saturating_sub(size);
            news.put(&mut message);
        }
        self.last = Some(now);
        Ok(out.send(message).await)
    }

    async fn now(&self, cluster: &Arc<Cluster>, plan: &WatchOptions) -> Result<Now, ApiError> {
        let rules = if plan.rules { Some(cluster.fleet.deliveries.now(&cluster.fleet).await?) } else { None };
        let table = rules.as_ref().map_or_else(|| cluster.fleet.table(), |rules| rules.table.clone());
        let rows = match &plan.route {
            Some(route) => {
                let row = cluster.fleet.stats.row(route, plan.over, self.since.elapsed(), &table);
                row.into_iter().map(Arc::new).collect()
            }
            None => cluster.fleet.stats.rows_over(plan.over, &table),
        };
        Ok(Now { table, rows, rules })
    }
}

/// Returns the common fields of the first message of an interval.
fn head(cluster: &Cluster, plan: &WatchOptions, table: &Snapshot) -> v1::WatchResponse {
    let newest = cluster.fleet.table();
    v1::WatchResponse {
        epoch: table.epoch().to_string(),
        revision: table.revision(),
        as_of: Some(SystemTime::now().into()),
        connected_clients: u32::try_from(cluster.fleet.hub.connected()).unwrap_or(u32::MAX),
        stale_since: newest.stale_since.map(Into::into),
        unaccepted_store: newest.unaccepted.as_ref().map(|found| found.reported(&newest)),
        held_clients: u32::try_from(cluster.fleet.hub.held()).unwrap_or(u32::MAX),
        kills: newest.shown_kills(SystemTime::now()),
        window: plan.over.wire(),
        missing_replicas: cluster.peers.missing(),
        ..Default::default()
    }
}

/// Returns the entries that are new or changed, and those that are gone.
fn news<'a>(before: Option<&'a Now>, now: &'a Now, plan: &'a WatchOptions) -> impl Iterator<Item = News<'a>> {
    let rows = |of: Option<&'a Now>| of.into_iter().flat_map(move |of| of.rows(plan));
    let rules = |of: Option<&'a Now>| of.into_iter().flat_map(move |of| of.rules(plan));
    let routes = differences(
        rows(before),
        rows(Some(now)),
        |a, b| a.route.cmp(&b.route),
        |a, b| std::ptr::eq(a, b) || a == b,
    );
    let reached = differences(
        rules(before),
        rules(Some(now)),
        |a, b| a.pattern.cmp(&b.pattern),
        |a, b| a.stored.wire.revision == b.stored.wire.revision && a.delivered == b.delivered,
    );
    let routes = routes.map(|(row, is_there)| if is_there { News::Route(row) } else { News::NoRoute(row) });
    let rules = reached.map(|(rule, is_there)| if is_there { News::Rule(rule) } else { News::NoRule(rule) });
    routes.chain(rules)
}

impl Now {
    fn rows<'a>(&'a self, plan: &'a WatchOptions) -> impl Iterator<Item = &'a RouteSummary> {
        let rows = self.rows.iter().map(|row| &**row);
        rows.filter(|row| plan.filter.accepts_route(&self.table, row.route.names(), &row.stats))
    }

    fn rules<'a>(&'a self, plan: &'a WatchOptions) -> impl Iterator<Item = &'a Reached> {
        let rules = self.rules.iter().flat_map(|all| &all.rules);
        rules.filter(|Reached { stored, pattern, .. }| {
            let mode = stored.wire.policy.as_ref().map_or(0, |policy| policy.mode);
            let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } =
                pattern.into();
            let names = [&*caller_service, &caller_cluster, &callee_service, &callee_method];
            plan.filter.accepts(names, mode) && plan.filter.accepts_owner(&stored.wire.owner)
        })
    }
}

/// Compares two sorted lists: returns entries of the second that are new or not the `same` (true), and
/// entries only in the first (false).
fn differences<'a, T: 'a>(
    before: impl Iterator<Item = &'a T>,
    now: impl Iterator<Item = &'a T>,
    order: fn(&T, &T) -> Ordering,
    same: fn(&T, &T) -> bool,
) -> impl Iterator<Item = (&'a T, bool)> {
    let (mut before, mut now) = (before.peekable(), now.peekable());
    std::iter::from_fn(move || {
        loop {
            let first = match (before.peek(), now.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(before), Some(now)) => order(before, now),
            };
            match first {
                Ordering::Less => return before.next().map(|gone| (gone, false)),
                Ordering::Greater => return now.next().map(|new| (new, true)),
                Ordering::Equal => {
                    if let (Some(before), Some(now)) = (before.next(), now.next())
                        && !same(before, now)
                    {
                        return Some((now, true));
                    }
                }
            }
        }
    })
}

impl News<'_> {
    fn size(&self) -> usize {
        match self {
            Self::Route(row) => row.stats.encoded_len(),
            Self::Rule(reached) => reached.stored.wire.encoded_len() + RULE_VIEW_BYTES,
            Self::NoRoute(row) => row.route.wire().encoded_len(),
            Self::NoRule(reached) => v1::Pattern::from(&reached.pattern).encoded_len(),
        }
    }

    fn put(&self, message: &mut v1::WatchResponse) {
        match self {
            Self::Route(row) => message.routes.push(row.stats.clone()),
            Self::NoRoute(row) => message.removed_routes.push(row.route.wire()),
            Self::Rule(reached) => message.rules.push(v1::RuleView {
                rule: Some(reached.stored.wire.clone()),
                clients: reached.delivered.clients,
                applied: reached.delivered.applied,
                refused: reached.delivered.refused,
                lacking_features: reached.delivered.lacking,
            }),
            Self::NoRule(reached) => message.removed_rules.push((&reached.pattern).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_what_is_new_other_or_gone() {
        let (before, now) = ([(1, 'a'), (2, 'b'), (4, 'd')], [(0, 'z'), (1, 'a'), (2, 'x'), (5, 'e')]);
        let found = differences(before.iter(), now.iter(), |a, b| a.0.cmp(&b.0), |a, b| a == b);
        let found: Vec<_> = found.map(|((n, letter), is_there)| (*n, *letter, is_there)).collect();
        assert_eq!(found, [(0, 'z', true), (2, 'x', true), (4, 'd', false), (5, 'e', true)]);
    }
}
