//! Checks of the statistics of routes: retries, gates and chains.

use std::collections::{BTreeMap, BTreeSet};

use damper_core::OTHER_METHOD;
use damper_core::fault::Millis;
use damper_proto::{convert, v1};

use crate::doctor::{Check, DoctorInput, codes, finding, service_of};
use crate::state::text::{many, percent};
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::{ENOUGH_CALLS, RouteSummary, WHOLE_COVERAGE};
use crate::write::reach;

/// Attempts per call from which on a route has a retry storm.
const STORM: f64 = 1.5;
/// The share of failed calls from which on they are reported.
const FAILING: f64 = 0.01;

/// The share of expired calls from which on they are reported.
const LATE: f64 = 0.05;

/// The share of a service's successful calls that pass its proxies, below which they are reported.
/// Callers and the service report at different times, so the two never agree exactly.
const BYPASSED: f64 = 0.5;

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "amplification is below 1.5", scope: DoctorInput::count_of_routes, find: storms },
    Check { what: "kills have taken effect", scope: DoctorInput::count_of_routes, find: stopped },
    Check { what: "retry breakers allow retries", scope: DoctorInput::count_of_routes, find: breakers },
    Check { what: "calls do not expire", scope: DoctorInput::count_of_routes, find: deadlines },
    Check { what: "budgets are not exhausted", scope: DoctorInput::count_of_routes, find: budgets },
    Check { what: "circuit breakers are closed", scope: DoctorInput::count_of_routes, find: circuits },
    Check { what: "no caller retries around Damper", scope: DoctorInput::count_of_routes, find: outer_loops },
    Check { what: "no retries by gRPC or Envoy", scope: served_scope, find: foreign_repeats },
    Check { what: "retry limits of callees reject nothing", scope: served_scope, find: shed },
    Check { what: "calls belong to requests", scope: DoctorInput::count_of_routes, find: lost_contexts },
    Check {
        what: "callers dial the proxies of services",
        scope: DoctorInput::count_of_clients,
        find: bypassed,
    },
    Check { what: "callees are connected too", scope: DoctorInput::count_of_routes, find: unknown_callees },
    Check { what: "failing routes have a rule", scope: DoctorInput::count_of_routes, find: without_rule },
];

/// Returns a finding for each route with a message.
fn each(
    input: &DoctorInput,
    known: damper_core::lint::codes::FindingCode,
    message_of: impl Fn(&v1::RouteStats) -> Option<String>,
) -> Vec<v1::Finding> {
    let findings = input.rows().filter_map(|RouteSummary { route, stats }| {
        Some(finding(known, &route.names().join(" "), message_of(stats)?))
    });
    findings.collect()
}

/// True if the rate would make enough calls in a minute; shorter windows need fewer calls.
fn enough(stats: &v1::RouteStats) -> bool {
    stats.calls_per_s * RateWindow::Minute.length().as_secs_f64() >= ENOUGH_CALLS
}

/// Formats the window.
fn last(input: &DoctorInput) -> String {
    match input.window {
        RateWindow::Minute => "the last minute".to_owned(),
        window => format!("the last {} s", window.length().as_secs()),
    }
}

fn storms(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::RETRY_STORM, |stats| storm(input, stats).filter(|_| stats.awaited_kill.is_none()))
}

/// The rates of the window still show a retry storm that a kill has just stopped.
fn stopped(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::STORM_STOPPED, |stats| {
        let kill = convert::pattern(stats.awaited_kill.as_ref()?).ok()?;
        let storm = storm(input, stats)?;
        Some(format!("stopped by kill {kill}, verifying; {storm}"))
    })
}

/// Describes the load if it is a retry storm.
fn storm(input: &DoctorInput, stats: &v1::RouteStats) -> Option<String> {
    let v1::RouteStats { amplification, calls_per_s, attempts_per_s, .. } = stats;
    (enough(stats) && *amplification > STORM).then(|| {
        format!(
            "{amplification:.2} attempts per call over {}: {attempts_per_s:.1}/s for {calls_per_s:.1} calls/s",
            last(input)
        )
    })
}

fn breakers(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::BREAKER_REFUSES, |stats| {
        let v1::RouteStats { breaker_refuses, clients, window_failures, window_successes, .. } = stats;
        (*breaker_refuses > 0).then(|| {
            format!(
                "retry breaker open in {breaker_refuses} of {} ({window_failures} failures, \
                 {window_successes} successes)",
                many(*clients as usize, "process")
            )
        })
    })
}

fn deadlines(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::TIME_RUNS_OUT, |stats| {
        let out = stats.fates.iter().filter(|ended| ended.fate() == v1::Fate::Deadline && !ended.would);
        let out: f64 = out.map(|ended| ended.per_s).sum();
        (enough(stats) && out > LATE * stats.calls_per_s).then(|| {
            let time = |quantile: &Option<prost_types::Duration>| {
                let known = quantile.and_then(convert::length);
                known.map_or_else(|| "unknown".to_owned(), |time| Millis(time).to_string())
            };
            let (all, p50, p99) = (stats.calls_per_s, time(&stats.p50), time(&stats.p99));
            format!("{out:.1} of {all:.1} calls/s expire; p50 {p50}, p99 {p99} of the others")
        })
    })
}

fn budgets(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::BUDGET_USED_UP, |stats| {
        let v1::RouteStats { budget_refuses, clients, .. } = stats;
        (*budget_refuses > 0)
            .then(|| format!("exhausted in {budget_refuses} of {}", many(*clients as usize, "process")))
    })
}

fn circuits(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::CIRCUIT_NOT_CLOSED, |stats| {
        let v1::RouteStats { circuit_open, clients, .. } = stats;
        (*circuit_open > 0)
            .then(|| format!("not closed in {circuit_open} of {}", many(*clients as usize, "process")))
    })
}

fn outer_loops(input: &DoctorInput) -> Vec<v1::Finding> {
    let findings = input.rows().filter(|row| row.stats.outer_loop_calls_per_s > 0.0).map(|row| {
        let caller = &row.route.caller_service;
        let rate = row.stats.outer_loop_calls_per_s;
        let share = percent(rate / row.stats.calls_per_s.max(f64::MIN_POSITIVE));
        let message = format!("{caller} makes failed calls again: {rate:.2}/s, {share} of the calls");
        finding(codes::OUTER_LOOP, &row.route.names().join(" "), message)
    });
    findings.collect()
}

fn served(input: &DoctorInput) -> impl Iterator<Item = (String, &v1::ServedRates)> {
    let served = input.served.iter().filter(|((service, _), _)| input.is_about(service));
    served.map(|((service, method), rates)| (format!("* * {service} {method}"), rates))
}

fn served_scope(input: &DoctorInput) -> String {
    format!("{} served", many(served(input).count(), "method"))
}

fn foreign_repeats(input: &DoctorInput) -> Vec<v1::Finding> {
    let mut found = Vec::new();
    for (subject, rates) in served(input) {
        for (known, who, rate) in [
            (codes::REPEATS_BY_GRPC, "gRPC clients", rates.grpc_repeats_per_s),
            (codes::REPEATS_BY_ENVOY, "Envoy", rates.envoy_repeats_per_s),
        ] {
            if rate > 0.0 {
                let first = rates.first_sends_per_s;
                let message = format!("{rate:.2} retries/s by {who}, and {first:.2} first attempts/s");
                found.push(finding(known, &subject, message));
            }
        }
    }
    found
}

fn shed(input: &DoctorInput) -> Vec<v1::Finding> {
    let shedding = served(input).filter(|(_, rates)| rates.shed_repeats_per_s > 0.0);
    let findings = shedding.map(|(subject, rates)| {
        let v1::ServedRates { shed_repeats_per_s, first_sends_per_s, .. } = rates;
        let message =
            format!("blocks {shed_repeats_per_s:.2} retries/s, at {first_sends_per_s:.2} first attempts/s");
        finding(codes::REPEATS_SHED, &subject, message)
    });
    findings.collect()
}

fn lost_contexts(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::CONTEXT_LOST, |stats| {
        let lost = 1.0 - stats.chain_coverage;
        let since = if enough(stats) {
            format!("of {}", last(input))
        } else {
            "since the processes started".to_owned()
        };
        (stats.total_calls as f64 >= ENOUGH_CALLS && stats.chain_coverage < WHOLE_COVERAGE)
            .then(|| format!("{} of the calls {since} belong to no request", percent(lost)))
    })
}

/// Compares the successful gRPC calls to a service behind a proxy with the requests that its proxies pass on,
/// in the last minute. Other calls may not have reached it. Nothing is concluded while a replica is
/// unreachable, because its statistics are missing.
fn bypassed(input: &DoctorInput) -> Vec<v1::Finding> {
    let lacks_reports = input.replicas.iter().any(|replica| !replica.problem.is_empty());
    if input.window != RateWindow::Minute || input.is_settling() || lacks_reports {
        return Vec::new();
    }
    let minute = RateWindow::Minute.length().as_secs_f64();
    let mut callees: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for client in input.clients().filter(|client| client.serves && client.via() == v1::Via::Proxy) {
        callees.entry(service_of(client)).or_default();
    }
    for RouteSummary { route, stats } in input.rows.iter().map(|row| &**row) {
        if let Some((succeed, _)) = callees.get_mut(&*route.callee_service)
            && is_grpc_method(&route.callee_method)
        {
            // The rate of a new route is that of its few seconds: it has no more calls than in all.
            *succeed += (successes(stats) * minute).min(stats.total_calls as f64);
        }
    }
    for ((service, method), rates) in &input.served {
        if let Some((_, serves)) = callees.get_mut(&**service)
            && is_grpc_method(method)
        {
            let repeats = rates.damper_repeats_per_s + rates.grpc_repeats_per_s + rates.envoy_repeats_per_s;
            *serves += (rates.first_sends_per_s + repeats) * minute;
        }
    }
    let bypassed = callees
        .into_iter()
        .filter(|(_, (succeed, serves))| *succeed >= ENOUGH_CALLS && *serves < BYPASSED * succeed);
    let findings = bypassed.map(|(service, (succeed, serves))| {
        let message = format!(
            "{succeed:.0} calls to {service} succeeded in the last minute, but its proxies report {serves:.0} requests"
        );
        finding(codes::INBOUND_BYPASSED, service, message)
    });
    findings.collect()
}

/// Returns the successful calls per second. A cancelled one is no error, and may not have reached the callee.
fn successes(stats: &v1::RouteStats) -> f64 {
    let is_success = |ended: &&v1::FateRate| {
        !ended.would && matches!(ended.fate(), v1::Fate::Ok | v1::Fate::OkAfterRetry | v1::Fate::OkByHedge)
    };
    stats.fates.iter().filter(is_success).map(|ended| ended.per_s).sum()
}

/// Returns true for a method of a gRPC service in a package: not for an HTTP route, which a proxy does not
/// serve, and not for an operation with a plain name.
fn is_grpc_method(method: &str) -> bool {
    let service = method.split('/').next().unwrap_or_default();
    service.contains('.') && !service.contains(':')
}

fn unknown_callees(input: &DoctorInput) -> Vec<v1::Finding> {
    if input.is_settling() {
        return Vec::new();
    }
    let connected = input.connected();
    let mut callees: Vec<(&str, &str)> =
        input.rows().map(|row| (&*row.route.callee_service, &*row.route.caller_service)).collect();
    callees.sort_unstable();
    callees.dedup_by_key(|(callee, _)| *callee);
    let unknown = callees.into_iter().filter(|(callee, _)| !connected.contains(callee));
    let findings = unknown.map(|(callee, caller)| {
        let message = format!("no process of {callee} is connected, and {caller} calls it");
        match intended_callee(input, callee) {
            Some(intended) => {
                let message =
                    format!("{message}; did you mean {intended}, which is connected and serves its methods?");
                finding(codes::CALLEE_MISSPELT, callee, message)
            }
            None => finding(codes::CALLEE_UNKNOWN, callee, message),
        }
    });
    findings.collect()
}

/// Returns the connected service that serves every method called on this callee; of several the nearest name.
fn intended_callee<'a>(input: &'a DoctorInput, callee: &str) -> Option<&'a str> {
    // Every server has gRPC's own methods, such as health.
    let is_own = |method: &str| !method.starts_with("grpc.") && method != OTHER_METHOD;
    let to_callee = input.rows.iter().filter(|row| &*row.route.callee_service == callee);
    let called: BTreeSet<&str> =
        to_callee.map(|row| &*row.route.callee_method).filter(|method| is_own(method)).collect();
    if called.is_empty() {
        return None;
    }
    let connected = input.connected();
    let mut serving: BTreeMap<&str, usize> = BTreeMap::new();
    for ((service, method), _) in &input.served {
        if called.contains(&**method) && connected.contains(&**service) {
            *serving.entry(service).or_default() += 1;
        }
    }
    let whole = serving.into_iter().filter(|(_, methods)| *methods == called.len());
    whole.map(|(service, _)| service).min_by_key(|service| reach::distance(callee, service))
}

fn without_rule(input: &DoctorInput) -> Vec<v1::Finding> {
    each(input, codes::FAILING_WITHOUT_RULE, |stats| {
        (stats.rule.is_none() && enough(stats) && stats.error_share >= FAILING).then(|| {
            let v1::RouteStats { error_share, calls_per_s, .. } = stats;
            format!("{} of {calls_per_s:.1} calls/s fail, and no rule applies", percent(*error_share))
        })
    })
}
