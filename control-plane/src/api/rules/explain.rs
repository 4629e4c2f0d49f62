//! Explains which rule applies to a route, and its effect.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Explanation, Mode, RepeatLimit, RouteKey, Tightened};
use damper_proto::{convert, v1};

use crate::graph;
use crate::push::fleet_state::FleetState;
use crate::state::error::ApiError;
use crate::state::kills::StoredKill;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::{RouteExplanation, Snapshot, UNREAD};
use crate::stats::rate_window::RateWindow;
use crate::write::findings;
use crate::write::findings::{FindingList, Traffic};

pub(crate) async fn explain(
    fleet: &Arc<FleetState>,
    request: v1::ExplainRequest,
) -> Result<v1::ExplainResponse, ApiError> {
    let Some(route) = &request.route else { return Err(ApiError::fault("route", "is required")) };
    let route = convert::route_key(route).map_err(|faults| ApiError::at("route", faults))?;
    fleet.off_runtime(move |fleet| Ok(explained(fleet, &route))).await
}

fn explained(fleet: &FleetState, route: &RouteKey) -> v1::ExplainResponse {
    let table = fleet.table();
    let RouteExplanation { explanation, unread } = table.explain(route);
    let policy = explanation.in_force.as_ref().map(|rule| rule.policy());
    let stored = |rule: &damper_core::Rule| {
        table.stored(rule.pattern()).map_or_else(|| rule.into(), |stored| stored.wire.clone())
    };
    let graph = graph::Graph::of(fleet, RateWindow::default(), &table, &table, Some(route));
    let now = SystemTime::now();
    let kill = table.kills().of_route(route, now);
    v1::ExplainResponse {
        winner: explanation.winner.as_deref().map(stored),
        losers: explanation
            .losers
            .iter()
            .map(|loser| v1::Loser { rule: Some(stored(&loser.rule)), reason: loser.reason.clone() })
            .collect(),
        effective: policy.map(Into::into),
        bound: Some(graph::hop_bound(policy)),
        revision: table.revision(),
        notes: kill
            .map(|stored| killed(stored, now))
            .into_iter()
            .chain(notes(&explanation, unread.as_ref(), &table, route))
            .chain(unknown_route(fleet, route))
            .collect(),
        cuts: explanation.cuts.iter().map(cut).collect(),
        kill: kill.and_then(|stored| stored.shown(now)),
        chain: graph::bound_through(&graph, route),
        findings: findings(fleet, &explanation),
    }
}

/// Returns a note if no client reports the route, as with a typing error in a name.
fn unknown_route(fleet: &FleetState, route: &RouteKey) -> Option<String> {
    let is_known = fleet.stats.keys().iter().any(|known| **known == *route);
    (!is_known).then(|| "no client has reported a call on this route; check its names".to_owned())
}

/// Returns the findings about the winning rule as it is in force.
fn findings(fleet: &FleetState, explanation: &Explanation) -> Vec<v1::Finding> {
    let Some(rule) = &explanation.in_force else { return Vec::new() };
    FindingList::all(findings::of_rule_itself(rule, &Traffic::new(fleet)))
}

fn cut(Tightened { guard, excess }: &Tightened) -> v1::Cut {
    v1::Cut {
        guard: Some(guard.pattern().into()),
        owner: guard.owner().to_owned(),
        field: excess.field.to_owned(),
        problem: excess.problem.clone(),
    }
}

/// Describes the effect of a kill under any rule.
fn killed(stored: &StoredKill, now: SystemTime) -> String {
    let kill = &stored.kill;
    let effect = if kill.calls() { "every call is rejected" } else { "no call is retried or hedged" };
    let left = Duration::from_secs(stored.remaining(now).unwrap_or_default().as_secs());
    let (routes, reason) = (kill.pattern(), kill.reason());
    format!(
        "for another {left:?}, the kill switch {routes} overrides every rule: {effect} (its reason: {reason})"
    )
}

/// Describes the retry limits of the callee.
fn limits(table: &Snapshot, route: &RouteKey) -> Vec<String> {
    let of_route = table.guards_of(route).filter_map(|guard| Some((guard, guard.ceiling().repeat_limit?)));
    let texts = of_route.map(|(guard, limit)| {
        let RepeatLimit { mode, ratio, min } = limit;
        let does = match mode {
            Mode::Enforce => "accepts",
            Mode::Observe => "would accept",
            Mode::Off => return format!("the retry limit of guard {} is off", guard.pattern()),
        };
        format!(
            "each process of the callee {does}, per method in 10 s, retries and hedges up to {ratio} of the first attempts, and at least {min} (guard {})",
            guard.pattern()
        )
    });
    texts.collect()
}

fn notes(
    explanation: &Explanation,
    unread: Option<&ResourceKey>,
    table: &Snapshot,
    route: &RouteKey,
) -> Vec<String> {
    let mut notes = Vec::new();
    match &explanation.winner {
        None if let Some(rule) = unread => {
            notes.push(format!("{rule} is off: {UNREAD}; no less specific rule replaces it"));
        }
        Some(winner) if let Some(guard) = unread => {
            notes.push(format!("rule {} is off: {guard} is {UNREAD}", winner.pattern()));
        }
        None => notes.push("no rule matches: calls are sent once and counted".to_owned()),
        Some(winner) => {
            notes.push(format!("rule {} applies; rules are not merged", winner.pattern()));
            match winner.policy().mode {
                Mode::Off => notes.push("its mode is off: calls are passed through".to_owned()),
                Mode::Observe => {
                    notes.push("its mode is observe: decisions are counted, not enforced".to_owned());
                }
                Mode::Enforce => {}
            }
        }
    }
    notes.extend(limits(table, route));
    let lost = explanation
        .losers
        .iter()
        .map(|loser| format!("rule {} does not apply: {}", loser.rule.pattern(), loser.reason));
    notes.extend(lost);
    if table.stale_since.is_some() {
        notes.push("the store is unavailable: newer rules may exist".to_owned());
    }
    notes
}
