//! The fleet as a stream: everything at first, then what changed, every interval.
//!
//! A watcher holds what it was told last and is told the difference to what is so now, when it has room. Nothing
//! is queued for it: a slow watcher sees fewer states, not old ones. While anybody watches, services report more
//! often; while one route is watched, those that can report it. Each interval brings a message even when nothing changed, so that a dead link is noticed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::Pattern;
use damper_proto::{convert, v1};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::delivery::{Delivered, Delivery};
use crate::errors::Error;
use crate::filter::Filter;
use crate::shared::Shared;
use crate::stats::{Over, Route, Row};
use crate::table::{StoredRule, TableView};
use crate::watching::Watching;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// The most bytes of rows in one message; more go into further ones. Few, so that a browser shows the first rows while
/// the others come, and takes each message in a task that nobody notices.
const MESSAGE_BYTES: usize = 128 << 10;

/// What a watcher asked for.
pub(super) struct Plan {
    interval: Duration,
    filter: Filter,
    rules: bool,
    over: Over,
    route: Option<Route>,
}

impl Plan {
    pub(super) fn read(request: v1::WatchRequest) -> Result<Self, Error> {
        let interval = match request.interval {
            None => DEFAULT_INTERVAL,
            Some(said) => convert::length(said)
                .filter(|interval| (MIN_INTERVAL..=MAX_INTERVAL).contains(interval))
                .ok_or_else(|| Error::fault("interval", "is not in 1s..=60s"))?,
        };
        let over = match &request.route {
            Some(_) => Over::read_of_one("window", request.window)?,
            None => Over::read("window", request.window)?,
        };
        let route = request.route.as_ref().map(Route::read).transpose();
        let route = route.map_err(|faults| Error::at("route", faults))?;
        Ok(Self { interval, filter: Filter::new(request.filter)?, rules: request.rules, over, route })
    }

    /// What was before the watch.
    fn past(&self, shared: &Shared) -> Vec<v1::Past> {
        match &self.route {
            _ if !self.filter.accepts_all() => Vec::new(),
            Some(route) => shared.stats.past_of(route),
            None => shared.stats.past_of_all(),
        }
    }
}

/// What a watcher was told.
struct Told {
    /// Since when it watches.
    since: Instant,
    epoch: Option<Arc<str>>,
    routes: HashMap<Route, Arc<Row>>,
    rules: BTreeMap<Pattern, (Arc<StoredRule>, Delivered)>,
}

/// Serves one watcher until it leaves.
pub(super) async fn serve(
    shared: Arc<Shared>,
    plan: Plan,
    out: mpsc::Sender<v1::WatchResponse>,
) -> Result<(), Error> {
    let _watching = match &plan.route {
        Some(route) => Watching::caller(&shared, &route.caller_service, &route.caller_cluster),
        None => Watching::everything(&shared),
    };
    let mut told = Told::nothing(Instant::now());
    let mut next = Instant::now();
    loop {
        tokio::select! {
            () = out.closed() => return Ok(()),
            () = sleep_until(next) => {}
        }
        for message in told.update(&shared, &plan) {
            if out.send(message).await.is_err() {
                return Ok(());
            }
        }
        next = Instant::now() + plan.interval;
    }
}

impl Told {
    fn nothing(since: Instant) -> Self {
        Self { since, epoch: None, routes: HashMap::new(), rules: BTreeMap::new() }
    }

    /// The way from what was told to what is so, in one message or more.
    fn update(&mut self, shared: &Shared, plan: &Plan) -> Vec<v1::WatchResponse> {
        let table = shared.table();
        let past = if self.epoch.is_none() { plan.past(shared) } else { Vec::new() };
        let reset = self.epoch.as_ref() != Some(table.epoch());
        if reset {
            *self = Self { epoch: Some(table.epoch().clone()), ..Self::nothing(self.since) };
        }
        let head = v1::WatchResponse {
            epoch: table.epoch().to_string(),
            revision: table.revision(),
            as_of: Some(SystemTime::now().into()),
            connected_clients: u32::try_from(shared.hub.connected()).unwrap_or(u32::MAX),
            stale_since: table.stale_since.map(Into::into),
            kills: table.kills().shown(SystemTime::now()),
            window: plan.over.wire(),
            missing_replicas: shared.replicas.missing(),
            ..Default::default()
        };
        let failures = plan.route.as_ref().map(|route| shared.stats.failures(route)).unwrap_or_default();
        let mut messages = vec![v1::WatchResponse { reset, past, failures, ..head.clone() }];
        let mut room = MESSAGE_BYTES;
        let mut place = |size: usize, put: &mut dyn FnMut(&mut v1::WatchResponse)| {
            if size > room {
                messages.push(v1::WatchResponse { continued: true, kills: Vec::new(), ..head.clone() });
                room = MESSAGE_BYTES;
            }
            room = room.saturating_sub(size);
            put(messages.last_mut().expect("there is always a message"));
        };
        self.update_routes(shared, plan, &table, &mut place);
        if plan.rules {
            self.update_rules(shared, plan, &table, &mut place);
        }
        messages
    }

    fn update_routes(&mut self, shared: &Shared, plan: &Plan, table: &Arc<TableView>, place: Place<'_>) {
        let rows = match &plan.route {
            Some(route) => shared
                .stats
                .row(route, plan.over, self.since.elapsed(), table)
                .into_iter()
                .map(Arc::new)
                .collect(),
            None => shared.stats.rows_over(plan.over, table),
        };
        let rows = rows.iter().filter(|row| plan.filter.accepts_route(table, row.route.names(), &row.stats));
        let mut now = HashMap::with_capacity(self.routes.len());
        for row in rows {
            if self.routes.remove(&row.route).is_none_or(|told| told != *row) {
                let stats = row.stats.clone();
                place(stats.encoded_len(), &mut |message| message.routes.push(stats.clone()));
            }
            now.insert(row.route.clone(), row.clone());
        }
        for gone in self.routes.keys() {
            let key = gone.wire();
            place(key.encoded_len(), &mut |message| message.removed_routes.push(key.clone()));
        }
        self.routes = now;
    }

    fn update_rules(&mut self, shared: &Shared, plan: &Plan, table: &TableView, place: Place<'_>) {
        let delivery = Delivery::of(&shared.hub, table);
        let mut now = BTreeMap::new();
        for (pattern, stored) in table.iter() {
            let mode = stored.wire.policy.as_ref().map_or(0, |policy| policy.mode);
            let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } =
                pattern.into();
            let names = [&*caller_service, &caller_cluster, &callee_service, &callee_method];
            if !(plan.filter.accepts(names, mode) && plan.filter.accepts_owner(&stored.wire.owner)) {
                continue;
            }
            let delivered = delivery.delivered(pattern, stored.wire.revision, stored.rule.as_deref());
            let same = |(told, before): &(Arc<StoredRule>, Delivered)| {
                told.wire.revision == stored.wire.revision && *before == delivered
            };
            if !self.rules.remove(pattern).as_ref().is_some_and(same) {
                let view = v1::RuleView {
                    rule: Some(stored.wire.clone()),
                    clients: delivered.clients,
                    applied: delivered.applied,
                    refused: delivered.refused,
                    lacking_features: delivered.lacking,
                };
                place(view.encoded_len(), &mut |message| message.rules.push(view.clone()));
            }
            now.insert(pattern.clone(), (stored.clone(), delivered));
        }
        for gone in self.rules.keys() {
            let key = v1::Pattern::from(gone);
            place(key.encoded_len(), &mut |message| message.removed_rules.push(key.clone()));
        }
        self.rules = now;
    }
}

/// Puts something of a size into a message that has room for it.
type Place<'a> = &'a mut dyn FnMut(usize, &mut dyn FnMut(&mut v1::WatchResponse));
