//! Checks of the rules against the routes of the fleet.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Mode, Part, Pattern, RouteKey, Rule};
use damper_proto::{convert, v1};

use crate::doctor::{Check, DoctorInput, codes, finding};
use crate::state::stored::StoredRule;
use crate::state::text::many;
use crate::stats::summary::RouteSummary;

/// The longest time in observe without a finding; it is meant as a temporary mode.
const OBSERVED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// From this number of processes on, one retry of each can overload a failing callee.
const MANY_CALLERS: u32 = 50;
/// Below this rate credit results in one retry per process.
const RARE_CALLS_PER_S: f64 = 0.5;

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "rules match routes", scope: count, find: without_routes },
    Check { what: "rules do not stay in observe", scope: count, find: observed },
    Check { what: "guards do not lower rules", scope: count, find: cut },
    Check { what: "stored rules have current settings", scope: count, find: mode_gone },
    Check {
        what: "small callers are limited together",
        scope: DoctorInput::count_of_routes,
        find: small_callers,
    },
];

/// The readable rules of the diagnosis: those that name the service or match one of its routes.
fn rules(input: &DoctorInput) -> impl Iterator<Item = (&Arc<StoredRule>, &Arc<Rule>)> {
    let matching = matching(input.rows());
    let read = input.table.iter().filter_map(|(_, stored)| Some((stored, stored.rule.as_ref()?)));
    read.filter(move |(_, rule)| {
        let pattern = rule.pattern();
        let names = |part: &Part| matches!(part, Part::Exact(name) if *name == input.service);
        input.service.is_empty()
            || names(&pattern.caller_service)
            || names(&pattern.callee_service)
            || matching.contains(pattern)
    })
}

/// Returns every pattern that matches one of the routes. Each route has few, so rules need not be compared
/// with all.
fn matching<'a>(rows: impl Iterator<Item = &'a RouteSummary>) -> HashSet<Pattern> {
    let keys = rows.filter_map(|row| row.route.key());
    keys.flat_map(|key| Pattern::candidates(&key).collect::<Vec<_>>()).collect()
}

fn count(input: &DoctorInput) -> String {
    many(rules(input).count(), "rule")
}

fn without_routes(input: &DoctorInput) -> Vec<v1::Finding> {
    // Without any route there is no evidence about rules.
    if input.rows.is_empty() {
        return Vec::new();
    }
    let matching = matching(input.rows.iter().map(|row| &**row));
    let findings = rules(input).filter(|(_, rule)| !matching.contains(rule.pattern())).map(|(_, rule)| {
        let message = format!("none of {} that processes report matches", many(input.rows.len(), "route"));
        finding(codes::MATCHES_NOTHING, &rule.pattern().to_string(), message)
    });
    findings.collect()
}

fn observed(input: &DoctorInput) -> Vec<v1::Finding> {
    let findings =
        rules(input).filter(|(_, rule)| rule.policy().mode == Mode::Observe).filter_map(|(stored, rule)| {
            let since = SystemTime::try_from(stored.wire.updated_at?).ok()?;
            let age = input.now.duration_since(since).ok().filter(|age| *age > OBSERVED_FOR)?;
            let days = age.as_secs() / (24 * 3600);
            let message = format!("has been in observe for at least {days} days");
            Some(finding(codes::OBSERVED_FOR_LONG, &rule.pattern().to_string(), message))
        });
    findings.collect()
}

fn mode_gone(input: &DoctorInput) -> Vec<v1::Finding> {
    let findings = rules(input).filter_map(|(stored, rule)| {
        let breaker = stored.wire.policy.as_ref()?.retry_breaker.as_ref()?;
        let message = || "its retry breaker was stored as adaptive and uses credit".to_owned();
        let subject = rule.pattern().to_string();
        (breaker.mode == convert::ADAPTIVE).then(|| finding(codes::BREAKER_MODE_GONE, &subject, message()))
    });
    findings.collect()
}

fn small_callers(input: &DoctorInput) -> Vec<v1::Finding> {
    let is_limited = |key: &RouteKey| {
        let limits = input.table.guards().of_route(key).filter_map(|stored| stored.guard.as_ref());
        limits.filter_map(|guard| guard.ceiling().repeat_limit).any(|limit| limit.mode == Mode::Enforce)
    };
    // The route with the most processes of each callee.
    let mut callees = BTreeMap::<String, &v1::RouteStats>::new();
    for RouteSummary { route, stats } in input.rows().filter(|row| row.stats.mode() == v1::Mode::Enforce) {
        let is_rare = stats.calls_per_s < RARE_CALLS_PER_S * f64::from(stats.clients);
        let key = route.key().filter(|_| stats.clients >= MANY_CALLERS && is_rare);
        let Some(key) = key.filter(|key| !is_limited(key)) else { continue };
        let most = callees.entry(key.callee_service().to_owned()).or_insert(stats);
        if stats.clients > most.clients {
            *most = stats;
        }
    }
    let findings = callees.into_iter().map(|(callee, stats)| {
        let v1::RouteStats { clients, calls_per_s, .. } = stats;
        let message = format!(
            "{clients} processes make {calls_per_s:.1} calls/s together, and the callee enforces no retry limit"
        );
        finding(codes::SMALL_CALLERS_UNLIMITED, &format!("* * {callee} *"), message)
    });
    findings.collect()
}

fn cut(input: &DoctorInput) -> Vec<v1::Finding> {
    let guards = input.table.guards();
    rules(input).flat_map(|(_, rule)| crate::write::findings::cuts(guards, rule)).collect()
}
