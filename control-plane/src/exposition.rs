//! The figures of routes and of served methods as Prometheus reads them.
//!
//! They are written straight from the statistics, whose number of routes is bounded; the labels are a route's four
//! names and words from fixed lists. Counters are what this server counted and never fall while it runs. Gauges are
//! what the processes said last.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::Code;
use damper_proto::v1;

use crate::class::Class;
use crate::hub::LAGS_AFTER;
use crate::shared::Shared;
use crate::stats::{Over, Row};

/// Everything about routes and served methods.
pub(crate) fn write(text: &mut String, shared: &Shared) {
    write_counters(text, shared);
    write_gauges(text, &shared.stats.rows_over(Over::Minute, &shared.table()));
    write_served(text, shared);
    write_clients(text, shared);
}

/// The counters of routes, as this server counted them.
fn write_counters(text: &mut String, shared: &Shared) {
    let mut families = [
        ("damper_calls_total", "Calls reported by services."),
        ("damper_attempts_total", "Sends reported by services, first ones included."),
        ("damper_retries_total", "Retries among the sends."),
        ("damper_hedges_total", "Hedges among the sends."),
        ("damper_would_hedges_total", "Hedges that would have been sent."),
        (
            "damper_outer_loop_calls_total",
            "Calls made again in a request after one had failed for good in it.",
        ),
        ("damper_no_context_calls_total", "Calls of processes that serve, made outside any request."),
        ("damper_call_fates_total", "How calls ended."),
        ("damper_attempt_codes_total", "How attempts ended."),
    ]
    .map(Family::counter);
    let [calls, attempts, retries, hedges, would_hedges, outer_loops, no_context, fates, codes] =
        &mut families;
    for counted in shared.stats.counted() {
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

/// Where the gates of routes stand, how long their calls take, and what applies to them.
fn write_gauges(text: &mut String, rows: &[Arc<Row>]) {
    let mut families = [
        ("damper_route_clients", "Connected processes that report the route."),
        ("damper_breaker_refuses", "Processes whose retry breaker refuses retries of the route."),
        ("damper_budget_refuses", "Processes whose budget refuses what is repeated of the route."),
        ("damper_circuit_open", "Processes whose circuit breaker is not closed for the route."),
        ("damper_route_killed", "Processes where a kill stops what is repeated of the route."),
        ("damper_route_mode", "1 for the mode of the rule that applies to the route; none has no rule."),
        ("damper_call_seconds", "How long calls took that ended within the last minute, by quantile."),
    ]
    .map(Family::gauge);
    let [clients, breaker, budget, circuit, killed, mode, seconds] = &mut families;
    for Row { route, stats } in rows.iter().map(|row| &**row) {
        let labels = route_labels(route.names());
        clients.add(&labels, stats.clients);
        breaker.add(&labels, stats.breaker_refuses);
        budget.add(&labels, stats.budget_refuses);
        circuit.add(&labels, stats.circuit_open);
        killed.add(&labels, stats.killed);
        mode.add(&format!("{labels},mode=\"{}\"", mode_name(stats)), 1);
        let quantiles = [("0.5", stats.p50), ("0.9", stats.p90), ("0.99", stats.p99), ("0.999", stats.p999)];
        for (quantile, time) in quantiles {
            if let Some(Ok(time)) = time.map(Duration::try_from) {
                seconds.add(&format!("{labels},quantile=\"{quantile}\""), time.as_secs_f64());
            }
        }
    }
    text.extend(families.map(|family| family.text));
}

fn mode_name(stats: &v1::RouteStats) -> &'static str {
    match stats.mode() {
        v1::Mode::Unspecified => "none",
        v1::Mode::Off => "off",
        v1::Mode::Observe => "observe",
        v1::Mode::Enforce => "enforce",
    }
}

/// The counters of what services serve.
fn write_served(text: &mut String, shared: &Shared) {
    let mut families = [
        ("damper_served_requests_total", "Requests that services received, by who repeated them."),
        ("damper_shed_repeats_total", "Repeats that a repeat limit refused."),
        ("damper_would_shed_repeats_total", "Repeats that a repeat limit would have refused."),
    ]
    .map(Family::counter);
    let [requests, shed, would_shed] = &mut families;
    for (service, method, served) in shared.stats.served() {
        let labels = format!("service=\"{}\",method=\"{}\"", escaped(&service), escaped(&method));
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

/// What the connected clients run on, and what is amiss with how many.
fn write_clients(text: &mut String, shared: &Shared) {
    let Census { by_source, behind, refusing, lacking, overridden } = Census::of(shared);
    let mut clients = Family::gauge(("damper_clients", "Connected clients, by what they run on."));
    for (source, count) in ["unknown", "built_in", "last_known_good", "live"].into_iter().zip(by_source) {
        clients.add(&format!("source=\"{source}\""), count);
    }
    text.push_str(&clients.text);
    for (name, help, value) in [
        ("damper_clients_behind", "Clients that have not confirmed for 10 s what they were sent.", behind),
        ("damper_clients_refusing", "Clients that refuse a rule or guard in force.", refusing),
        ("damper_clients_lacking_features", "Clients that lack a feature that a rule needs.", lacking),
        ("damper_clients_overridden", "Clients whose mode is overridden where they run.", overridden),
    ] {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"));
    }
}

/// How many clients are what.
#[derive(Default)]
struct Census {
    /// By the number of the source on the wire.
    by_source: [usize; 4],
    behind: usize,
    refusing: usize,
    lacking: usize,
    overridden: usize,
}

impl Census {
    fn of(shared: &Shared) -> Self {
        let table = shared.table();
        let now = SystemTime::now();
        let lags = |since: SystemTime| now.duration_since(since).is_ok_and(|lag| lag >= LAGS_AFTER);
        let sessions = shared.hub.all();
        // Once per class: it is a look at every rule.
        let mut lacking: HashMap<&Class, bool> = HashMap::new();
        let mut census = Self::default();
        for session in &sessions {
            let progress = session.progress();
            let source = usize::try_from(progress.source()).unwrap_or_default();
            if let Some(count) = census.by_source.get_mut(source) {
                *count += 1;
            }
            census.behind += usize::from(progress.behind_since().is_some_and(lags));
            census.refusing += usize::from(progress.refuses(&table).next().is_some());
            census.overridden += usize::from(progress.override_mode() != 0);
            drop(progress);
            let class = &*session.class;
            let lacks = lacking
                .entry(class)
                .or_insert_with(|| !class.has_all_features() && !class.withheld(&table).is_empty());
            census.lacking += usize::from(*lacks);
        }
        census
    }
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
