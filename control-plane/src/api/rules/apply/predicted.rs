//! Predicts the effect of edits on routes with traffic, by simulation.
//!
//! Each of the busiest routes whose policy changes is simulated alone, before and after, under three
//! behaviours of its callee (see `damper_sim::what_if`). The input is its measurements: calls and latencies
//! of the last minute, and codes of attempts of that minute or, after few calls, since its clients started.
//! For changes without such a route the response has only the bound.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Pattern, Policy, RouteKey};
use damper_proto::{convert, v1};
use damper_sim::{Change, Downstream, LENGTH, Measured, RATE, Side, what_if};
use damper_store::writer::ProposedEdit;

use crate::graph::wire::hop_bound;
use crate::state::error::ApiError;
use crate::state::exclusive::CancelCheck;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::RouteSummary;
use crate::write::Writes;
use crate::write::amplification::amplified_on;
use crate::write::chain_comparison::ChainComparison;

const MAX_ROUTES: usize = 10;
const MAX_WITHOUT_TRAFFIC: usize = 100;
/// The behaviours of a callee, in the order of the response.
const CALLEES: [(Downstream, v1::prediction::Callee); 3] = [
    (Downstream::AsMeasured, v1::prediction::Callee::AsMeasured),
    (Downstream::TenthFailing, v1::prediction::Callee::TenthFailing),
    (Downstream::TotalOutage, v1::prediction::Callee::Outage),
];

/// Edits, and the routes that they change.
pub(crate) struct Prediction<'a> {
    writes: &'a Writes,
    write: ChainComparison<'a>,
    /// Routes with calls whose policy changes, the busiest first.
    routes: Vec<ChangedRoute>,
    /// Subjects without such a route, in the order of the set.
    without_traffic: Vec<&'a ResourceKey>,
}

/// A route whose policy changes.
struct ChangedRoute {
    row: Arc<RouteSummary>,
    key: RouteKey,
    before: Option<Policy>,
    after: Option<Policy>,
}

impl<'a> Prediction<'a> {
    /// Creates a prediction. `changed` contains the subjects of the edits, except those that stay the same.
    pub(crate) fn of(
        writes: &'a Writes,
        before: &'a Arc<Snapshot>,
        edits: &'a [ProposedEdit],
        changed: &'a [ResourceKey],
    ) -> Self {
        let write = ChainComparison::new(writes, before, edits);
        let rows = writes.fleet.stats.rows_over(RateWindow::Minute, before);
        let active = rows.iter().filter(|row| row.stats.calls_per_s > 0.0);
        let mut routes: Vec<ChangedRoute> =
            active.filter_map(|row| ChangedRoute::of(row, before, &write.after)).collect();
        routes.sort_by(|a, b| b.calls_per_s().total_cmp(&a.calls_per_s()));
        let mut without: HashSet<&Pattern> = changed.iter().filter_map(ResourceKey::pattern).collect();
        for pattern in routes.iter().flat_map(|route| Pattern::candidates(&route.key)) {
            without.remove(&pattern);
        }
        let is_without = |pattern: &Pattern| without.contains(pattern);
        let without_traffic = changed.iter().filter(|subject| subject.pattern().is_some_and(is_without));
        Self { writes, write, routes, without_traffic: without_traffic.collect() }
    }

    /// Simulates all routes and returns the response. Errors once the request is cancelled.
    pub(crate) fn response(&self, cancel: &CancelCheck) -> Result<v1::WhatIfResponse, ApiError> {
        let (predicted, left_out) = self.routes.split_at(self.routes.len().min(MAX_ROUTES));
        let routes = cancel.each(predicted, |route| self.route(route))?;
        let without_traffic = self.without_traffic.iter().take(MAX_WITHOUT_TRAFFIC);
        Ok(v1::WhatIfResponse {
            revision: self.write.before.revision(),
            together: combined(&routes),
            routes,
            routes_left_out: u32::try_from(left_out.len()).unwrap_or(u32::MAX),
            without_traffic: without_traffic.filter_map(|subject| self.bounds(subject)).collect(),
            without_traffic_total: u32::try_from(self.without_traffic.len()).unwrap_or(u32::MAX),
        })
    }

    fn route(&self, route: &ChangedRoute) -> Result<v1::RoutePrediction, ApiError> {
        let ChangedRoute { row, key, before, after } = route;
        let change =
            Change { before: before.as_ref(), after: after.as_ref(), measured: route.measured(self.writes) };
        let calls_per_s = route.calls_per_s();
        let predict = |(downstream, callee): (Downstream, v1::prediction::Callee)| {
            let found = what_if(&change, downstream);
            let found = found.map_err(|faults| {
                ApiError::Unmet(format!("the rules for {key} cannot be simulated: {faults}"))
            })?;
            let [before, after] = [found.before, found.after].map(|side| Some(to_wire(&side, calls_per_s)));
            Ok(v1::Prediction { callee: callee.into(), before, after })
        };
        let (amplified_before, amplified_after) = amplified_on(&self.write, key);
        Ok(v1::RoutePrediction {
            route: Some(row.route.wire()),
            calls_per_s,
            attempts_per_call: row.stats.amplification,
            predictions: CALLEES.into_iter().map(predict).collect::<Result<_, ApiError>>()?,
            before: Some(amplified_before),
            after: Some(amplified_after),
        })
    }

    /// Returns the bounds of a rule or guard.
    fn bounds(&self, subject: &ResourceKey) -> Option<v1::WithoutTraffic> {
        let pattern = subject.pattern()?;
        let bound = |table: &Snapshot| Some(hop_bound(table.policy_for(pattern).as_ref()));
        Some(v1::WithoutTraffic {
            key: Some(pattern.into()),
            guard: matches!(subject, ResourceKey::Guard(_)),
            before: bound(self.write.before),
            after: bound(&self.write.after),
        })
    }
}

impl ChangedRoute {
    /// Returns the route; `None` if the edits do not change its policy.
    fn of(row: &Arc<RouteSummary>, before: &Snapshot, after: &Snapshot) -> Option<Self> {
        let key = row.route.key()?;
        let [before, after] = [before, after].map(|table| table.policy_in_force(&key));
        (before != after).then(|| Self { row: row.clone(), key, before, after })
    }

    fn calls_per_s(&self) -> f64 {
        self.row.stats.calls_per_s
    }

    /// Returns the input of the simulation. A call rate beyond its maximum is clamped; the result uses only
    /// shares.
    fn measured(&self, writes: &Writes) -> Measured {
        let stats = &self.row.stats;
        let milli = stats.calls_per_s * 1000.0;
        let latency = |wire: Option<prost_types::Duration>| {
            wire.and_then(convert::length).unwrap_or_default().min(LENGTH.max)
        };
        let p50 = latency(stats.p50);
        let codes = Pattern::candidates(&self.key).next().map(|exact| writes.fleet.stats.measured(&exact));
        Measured {
            calls_milli_per_second: milli.clamp(f64::from(RATE.min), f64::from(RATE.max)) as u32,
            processes: stats.clients.max(1),
            failures: codes.map(|codes| codes.failures().collect()).unwrap_or_default(),
            p50,
            p99: latency(stats.p99).max(p50),
        }
    }
}

fn to_wire(side: &Side, calls_per_s: f64) -> v1::Predicted {
    let p99 = Some(side.p99_us).filter(|us| *us > 0).map(Duration::from_micros);
    v1::Predicted {
        attempts_per_s: side.attempts_per_call * calls_per_s,
        attempts_per_call: side.attempts_per_call,
        success_share: side.success_rate,
        p99: p99.and_then(|p99| prost_types::Duration::try_from(p99).ok()),
    }
}

/// Returns the sum of all routes.
fn combined(routes: &[v1::RoutePrediction]) -> Vec<v1::Prediction> {
    if routes.is_empty() {
        return Vec::new();
    }
    let callees = CALLEES.iter().enumerate().map(|(place, (_, callee))| {
        let sum = |side: fn(&v1::Prediction) -> Option<v1::Predicted>| {
            let sides = routes.iter().filter_map(|route| {
                let side = route.predictions.get(place).and_then(side)?;
                Some((route.calls_per_s, side))
            });
            summed(sides)
        };
        let (before, after) = (sum(|predicted| predicted.before), sum(|predicted| predicted.after));
        v1::Prediction { callee: (*callee).into(), before: Some(before), after: Some(after) }
    });
    callees.collect()
}

fn summed(sides: impl Iterator<Item = (f64, v1::Predicted)>) -> v1::Predicted {
    let (mut calls, mut attempts, mut succeeded) = (0.0, 0.0, 0.0);
    for (calls_per_s, side) in sides {
        calls += calls_per_s;
        attempts += side.attempts_per_s;
        succeeded += side.success_share * calls_per_s;
    }
    v1::Predicted {
        attempts_per_s: attempts,
        attempts_per_call: attempts / calls,
        success_share: succeeded / calls,
        p99: None,
    }
}
