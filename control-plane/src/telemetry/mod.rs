//! Renders `/metrics`: the statistics of routes and of served methods for Prometheus.
//!
//! The labels are a route's four names and words from fixed lists. The number of listed routes has a limit;
//! the others are summed in one route with the name `_OTHER`. Counters contain the clients of this replica
//! only, so that the sum over all replicas is the fleet's; they never fall while it runs. Gauges of clients
//! are of this replica; those of routes are of the fleet, the same at each replica. The text is rendered off
//! the runtime, at most once a second.

pub(crate) mod jobs;
pub(crate) mod kills;

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use damper_core::{Code, OTHER_METHOD};
use damper_proto::{convert, v1};
use tokio::time::Instant;

use crate::clients::group::ClientGroup;
use crate::cluster::Cluster;
use crate::jobs::Jobs;
use crate::stats::rate_window::RateWindow;
use crate::stats::served::{Method, ServedCounters};
use crate::stats::summary::RouteSummary;
use crate::stats::top_routes::{TopRoutes, TopWithRest};
use crate::stats::{Route, RouteCounters};

/// The most listed routes, and the most listed methods. A route has up to 75 series, and a usual Prometheus
/// takes that many from one target; alerts and dashboards use sums and maxima.
const MAX_LISTED: usize = 1000;
/// A rendered text is reused for this time.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The sources of `/metrics`.
pub(crate) struct Telemetry {
    pub(crate) cluster: Arc<Cluster>,
    /// How long a client may take to acknowledge before it counts as behind.
    pub(crate) lags_after: Duration,
    pub(crate) cache: ScrapeCache,
    pub(crate) jobs: Arc<Jobs>,
}

/// The last rendered text, and the state for the next one.
#[derive(Default)]
pub(crate) struct ScrapeCache {
    /// Locked during rendering, so that concurrent requests share the result.
    last: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    top_routes: Mutex<TopRoutes>,
}

/// Returns the text of all metrics; `None` if rendering failed.
pub(crate) async fn text(telemetry: &Arc<Telemetry>) -> Option<Bytes> {
    let mut last = telemetry.cache.last.lock().await;
    if let Some((at, text)) = &*last
        && at.elapsed() < FRESH_FOR
    {
        return Some(text.clone());
    }
    let making = telemetry.clone();
    let made = tokio::task::spawn_blocking(move || make(&making)).await;
    let text = made.inspect_err(|error| tracing::error!(%error, "rendering /metrics failed")).ok()?;
    *last = Some((Instant::now(), text.clone()));
    Some(text)
}

fn make(telemetry: &Telemetry) -> Bytes {
    let mut text = telemetry.cluster.fleet.metrics.render();
    let (routes, served) = {
        let mut top_routes = telemetry.cache.top_routes.lock().expect("no holder of the lock panics");
        (
            top_routes.routes(&telemetry.cluster.fleet.stats, MAX_LISTED),
            top_routes.served(&telemetry.cluster.fleet.stats, MAX_LISTED),
        )
    };
    write_counters(&mut text, &routes);
    write_gauges(
        &mut text,
        &telemetry.cluster.fleet.stats.rows_over(RateWindow::Minute, &telemetry.cluster.fleet.table()),
        &routes,
    );
    write_served(&mut text, &served);
    write_clients(&mut text, telemetry);
    write_replicas(&mut text, telemetry);
    crate::telemetry::kills::write_figures(&mut text, &telemetry.cluster.fleet);
    jobs::write_figures(&mut text, &telemetry.jobs);
    text.into()
}

/// Writes the counters of routes.
fn write_counters(text: &mut String, routes: &TopWithRest<RouteCounters, RouteCounters>) {
    let mut families = [
        ("damper_calls_total", "Calls reported by services to this replica."),
        ("damper_attempts_total", "Attempts reported by services to this replica, including first ones."),
        ("damper_retries_total", "Retries among the attempts."),
        ("damper_hedges_total", "Hedges among the attempts."),
        ("damper_would_hedges_total", "Hedges that would have been sent."),
        ("damper_outer_loop_calls_total", "Calls repeated by a loop of the caller, or its gRPC client."),
        ("damper_no_context_calls_total", "Calls of processes that serve, made outside any request."),
        ("damper_call_fates_total", "How calls ended."),
        ("damper_attempt_codes_total", "How attempts ended."),
    ]
    .map(Family::counter);
    let [calls, attempts, retries, hedges, would_hedges, outer_loops, no_context, fates, codes] =
        &mut families;
    for counted in routes.each.iter().chain(&routes.others) {
        let labels = route_labels(counted.route.names());
        calls.add(&labels, counted.calls());
        attempts.add(&labels, counted.attempts());
        retries.add(&labels, counted.retries());
        hedges.add(&labels, counted.hedges());
        would_hedges.add(&labels, counted.would_hedges());
        outer_loops.add(&labels, counted.outer_loop_calls());
        no_context.add(&labels, counted.no_context_calls());
        for (ending, count) in counted.fates() {
            fates.add(&format!("{labels},fate=\"{ending}\""), count);
        }
        for (code, count) in counted.codes() {
            codes.add(&format!("{labels},code=\"{}\"", Code::name(code)), count);
        }
    }
    text.extend(families.map(|family| family.text));
}

/// Writes the gates, latencies and modes of routes.
fn write_gauges(
    text: &mut String,
    rows: &[Arc<RouteSummary>],
    routes: &TopWithRest<RouteCounters, RouteCounters>,
) {
    let mut families = [
        ("damper_route_clients", "Processes connected to any replica that report the route."),
        ("damper_breaker_refuses", "Processes whose retry breaker blocks retries of the route."),
        ("damper_budget_refuses", "Processes whose budget blocks retries and hedges of the route."),
        ("damper_circuit_open", "Processes whose circuit breaker is not closed for the route."),
        ("damper_route_killed", "Processes where a kill stops retries and hedges of the route."),
        (
            "damper_route_mode",
            "1 for the mode of the rule that applies to the route, none without one; for _OTHER the number of such routes.",
        ),
        ("damper_call_seconds", "How long calls took that ended within the last minute, by quantile."),
    ]
    .map(Family::gauge);
    let [clients, breaker, budget, circuit, killed, mode, seconds] = &mut families;
    let listed = routes.names(|counted| &counted.route);
    let (each, others): (Vec<&RouteSummary>, Vec<&RouteSummary>) =
        rows.iter().map(|row| &**row).partition(|row| listed.contains(&row.route));
    if !others.is_empty() {
        let labels = route_labels(Route::others().names());
        let sum =
            |of: fn(&v1::RouteStats) -> u32| others.iter().map(|row| u64::from(of(&row.stats))).sum::<u64>();
        clients.add(&labels, sum(|stats| stats.clients));
        breaker.add(&labels, sum(|stats| stats.breaker_refuses));
        budget.add(&labels, sum(|stats| stats.budget_refuses));
        circuit.add(&labels, sum(|stats| stats.circuit_open));
        killed.add(&labels, sum(|stats| stats.killed));
        for name in MODES {
            let count = others.iter().filter(|row| mode_name(&row.stats) == name).count();
            mode.add(&format!("{labels},mode=\"{name}\""), count);
        }
    }
    for RouteSummary { route, stats } in each {
        let labels = route_labels(route.names());
        clients.add(&labels, stats.clients);
        breaker.add(&labels, stats.breaker_refuses);
        budget.add(&labels, stats.budget_refuses);
        circuit.add(&labels, stats.circuit_open);
        killed.add(&labels, stats.killed);
        mode.add(&format!("{labels},mode=\"{}\"", mode_name(stats)), 1);
        let quantiles = [("0.5", stats.p50), ("0.9", stats.p90), ("0.99", stats.p99), ("0.999", stats.p999)];
        for (quantile, time) in quantiles {
            if let Some(time) = time.and_then(convert::length) {
                seconds.add(&format!("{labels},quantile=\"{quantile}\""), time.as_secs_f64());
            }
        }
    }
    text.extend(families.map(|family| family.text));
}

const MODES: [&str; 4] = ["none", "off", "observe", "enforce"];

fn mode_name(stats: &v1::RouteStats) -> &'static str {
    match stats.mode() {
        v1::Mode::Unspecified => "none",
        v1::Mode::Off => "off",
        v1::Mode::Observe => "observe",
        v1::Mode::Enforce => "enforce",
    }
}

/// Writes the counters of served methods.
fn write_served(text: &mut String, listed: &TopWithRest<(Method, ServedCounters), ServedCounters>) {
    let mut families = [
        ("damper_served_requests_total", "Requests that services received, by the source of the retry."),
        ("damper_shed_repeats_total", "Retries that the retry limit of a callee rejected."),
        (
            "damper_would_shed_repeats_total",
            "Retries that the retry limit of a callee would have rejected, in observe mode.",
        ),
    ]
    .map(Family::counter);
    let [requests, shed, would_shed] = &mut families;
    let others = listed.others.as_ref().map(|served| ((OTHER_METHOD, OTHER_METHOD), served));
    let each = listed.each.iter().map(|((service, method), served)| ((&**service, &**method), served));
    for ((service, method), served) in each.chain(others) {
        let labels = format!("service=\"{}\",method=\"{}\"", escaped(service), escaped(method));
        for (by, count) in [
            ("none", served.first_sends),
            ("damper", served.damper_repeats),
            ("grpc", served.grpc_repeats),
            ("envoy", served.envoy_repeats),
        ] {
            requests.add(&format!("{labels},repeated_by=\"{by}\""), count);
        }
        shed.add(&labels, served.shed_repeats);
        would_shed.add(&labels, served.would_shed_repeats);
    }
    text.extend(families.map(|family| family.text));
}

/// Writes the sources and problems of the connected clients.
fn write_clients(text: &mut String, telemetry: &Telemetry) {
    let ClientFigures { by_source, behind, refusing, lacking, overridden, held } =
        ClientFigures::of(telemetry);
    let mut clients =
        Family::gauge(("damper_clients", "Clients connected to this replica, by the source of their rules."));
    for (source, count) in ["unknown", "built_in", "last_known_good", "live"].into_iter().zip(by_source) {
        clients.add(&format!("source=\"{source}\""), count);
    }
    text.push_str(&clients.text);
    for (name, help, value) in [
        (
            "damper_clients_behind",
            "Clients of this replica that have not acknowledged a revision in time, 10 s unless set.",
            behind,
        ),
        (
            "damper_clients_refusing",
            "Clients of this replica that reject a rule or guard in force.",
            refusing,
        ),
        (
            "damper_clients_lacking_features",
            "Clients of this replica that lack a feature that a rule needs.",
            lacking,
        ),
        ("damper_clients_overridden", "Clients of this replica with a local mode override.", overridden),
        (
            "damper_clients_held",
            "Clients of this replica that run rules missing from the store, until an operator decides.",
            held,
        ),
        (
            "damper_store_full",
            "1 while the store's disk has no room: only kills and removals are written.",
            usize::from(telemetry.cluster.fleet.state.store.is_full()),
        ),
    ] {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"));
    }
}

/// Counts of clients by state.
#[derive(Default)]
struct ClientFigures {
    /// By the number of the source on the wire.
    by_source: [usize; 4],
    behind: usize,
    refusing: usize,
    lacking: usize,
    overridden: usize,
    held: usize,
}

impl ClientFigures {
    fn of(telemetry: &Telemetry) -> Self {
        let table = telemetry.cluster.fleet.table();
        let now = SystemTime::now();
        let lags = |since: SystemTime| now.duration_since(since).is_ok_and(|lag| lag >= telemetry.lags_after);
        let sessions = telemetry.cluster.fleet.hub.own();
        // Once per group, because it visits every rule.
        let mut lacking: HashMap<&ClientGroup, bool> = HashMap::new();
        let mut figures = Self::default();
        for session in &sessions {
            let progress = session.progress();
            let source = usize::try_from(progress.source()).unwrap_or_default();
            if let Some(count) = figures.by_source.get_mut(source) {
                *count += 1;
            }
            figures.behind += usize::from(progress.behind_since().is_some_and(lags));
            figures.refusing += usize::from(progress.refuses(&table).next().is_some());
            figures.overridden += usize::from(progress.override_mode() != 0);
            drop(progress);
            figures.held += usize::from(session.is_held());
            let class = &*session.class;
            let lacks = lacking.entry(class).or_insert_with(|| class.is_behind_rules(&table));
            figures.lacking += usize::from(*lacks);
        }
        figures
    }
}

/// Writes the known replicas, including this one, and the unreachable ones.
fn write_replicas(text: &mut String, telemetry: &Telemetry) {
    let (others, missing) = (telemetry.cluster.peers.all_others().len(), telemetry.cluster.peers.missing());
    for (name, help, value) in [
        (
            "damper_replicas",
            "Replicas of the control plane that this one knows of, itself included.",
            others + 1,
        ),
        (
            "damper_replicas_unheard",
            "Unreachable replicas; the statistics of their clients are missing.",
            missing.len(),
        ),
    ] {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"));
    }
    let mut unreachable =
        Family::gauge(("damper_replica_unheard", "1 for each unreachable replica, by its id."));
    missing.iter().for_each(|id| unreachable.add(&format!("replica=\"{}\"", escaped(id)), 1));
    text.push_str(&unreachable.text);
}

fn route_labels(names: [&str; 4]) -> String {
    let [caller, cluster, callee, method] = names.map(escaped);
    format!(
        "caller_service=\"{caller}\",caller_cluster=\"{cluster}\",callee_service=\"{callee}\",\
         callee_method=\"{method}\""
    )
}

/// One metric with all its labels.
struct Family {
    name: &'static str,
    text: String,
}

impl Family {
    fn counter((name, help): (&'static str, &str)) -> Self {
        Self { name, text: format!("# HELP {name} {help}\n# TYPE {name} counter\n") }
    }

    fn gauge((name, help): (&'static str, &str)) -> Self {
        Self { name, text: format!("# HELP {name} {help}\n# TYPE {name} gauge\n") }
    }

    fn add(&mut self, labels: &str, value: impl Display) {
        self.text.push_str(&format!("{}{{{labels}}} {value}\n", self.name));
    }
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}
