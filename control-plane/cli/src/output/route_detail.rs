//! All statistics of one route, for `damper stats --route`.
//!
//! Fates that never occurred are omitted. Fates without recent calls keep their line, so that the layout is
//! stable.

use damper_core::{Ending, Fate};
use damper_proto::v1;

use crate::input::filter::mode_name;
use crate::input::key;
use crate::output::figures::{amplification, coverage, rate, share, state, time};
use crate::output::{Align, Table};

/// Returns all statistics of a route.
pub(crate) fn portrait(route: &v1::RouteStats) -> String {
    let fates = format!("{}{}", fates(route), blocked(route));
    [head(route), flow(route).to_string(), fates, served(route)].join("\n")
}

fn head(route: &v1::RouteStats) -> String {
    let rule = match &route.rule {
        Some(rule) => format!("{}, {}", key::words(Some(rule)), mode_name(route.mode)),
        None => "none".to_owned(),
    };
    let latency = [("p50", &route.p50), ("p90", &route.p90), ("p99", &route.p99), ("p99.9", &route.p999)]
        .map(|(name, value)| match time(value.as_ref()).as_str() {
            "" => format!("{name} -"),
            time => format!("{name} {time}"),
        })
        .join("  ");
    let state = match state(route).as_str() {
        "" => "retries are not blocked".to_owned(),
        state => state.to_owned(),
    };
    let windows = format!("{} failures, {} successes", route.window_failures, route.window_successes);
    let rows = [
        ("route", key::route_columns(route.key.as_ref()).join(" ")),
        ("rule", rule),
        ("processes", route.clients.to_string()),
        ("state", state),
        ("breaker windows", windows),
        ("latency", latency),
        ("amplification", or_none(amplification(route.amplification))),
        ("errors", share(route.error_share)),
        ("coverage", coverage(route)),
    ];
    rows.map(|(what, value)| format!("{what:<16} {}\n", crate::output::printable(&value))).concat()
}

fn or_none(value: String) -> String {
    if value.is_empty() { "no calls".to_owned() } else { value }
}

/// Attempts per second and since the processes started.
fn flow(route: &v1::RouteStats) -> Table {
    let mut table =
        Table::new(&[("CALLS", Align::Left), ("PER SECOND", Align::Right), ("TOTAL", Align::Right)]);
    for (what, per_s, total) in [
        ("calls", route.calls_per_s, Some(route.total_calls)),
        ("attempts", route.attempts_per_s, Some(route.total_attempts)),
        ("retries", route.retries_per_s, None),
        ("hedges", route.hedges_per_s, Some(route.total_hedges)),
        ("would_hedges", route.would_hedges_per_s, None),
        ("in a loop of the caller", route.outer_loop_calls_per_s, Some(route.total_outer_loop_calls)),
    ] {
        table.row([what.to_owned(), rate(per_s), total.map_or_else(String::new, |total| total.to_string())]);
    }
    table
}

fn fates(route: &v1::RouteStats) -> Table {
    let mut table =
        Table::new(&[("FATE", Align::Left), ("PER SECOND", Align::Right), ("TOTAL", Align::Right)]);
    for rate_of_fate in &route.fates {
        let v1::FateRate { fate, would, per_s, total } = rate_of_fate;
        let fate = v1::Fate::try_from(*fate).ok().and_then(|fate| Fate::try_from(fate).ok());
        // From a newer server.
        let name =
            fate.map_or_else(|| "unknown".to_owned(), |fate| Ending { fate, would: *would }.to_string());
        table.row([name, rate(*per_s), total.to_string()]);
    }
    table
}

/// The line below the fates; empty if no retry was blocked.
fn blocked(route: &v1::RouteStats) -> String {
    let Some(v1::BlockedRetries { share: of_failed, reason, mixed, would }) = &route.blocked_retries else {
        return String::new();
    };
    let what = if *would { "Retries that would be blocked" } else { "Blocked retries" };
    let mainly = if *mixed { "mainly " } else { "" };
    format!("{what}: {} of failed calls ({mainly}{})\n", share(*of_failed), crate::output::printable(reason))
}

/// Requests that the callee receives from all callers.
fn served(route: &v1::RouteStats) -> String {
    let Some(served) = &route.served else {
        return "The callee reports no served requests.\n".to_owned();
    };
    let mut table = Table::new(&[("SERVED FOR ALL CALLERS", Align::Left), ("PER SECOND", Align::Right)]);
    for (what, per_s) in [
        ("first attempts", served.first_sends_per_s),
        ("retries by Damper", served.damper_repeats_per_s),
        ("retries by gRPC clients", served.grpc_repeats_per_s),
        ("retries by Envoy", served.envoy_repeats_per_s),
        ("rejected retries", served.shed_repeats_per_s),
        ("retries that would be rejected", served.would_shed_repeats_per_s),
    ] {
        table.row([what.to_owned(), rate(per_s)]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_retries_are_below_the_fates() {
        let mut route = v1::RouteStats::default();
        assert!(!portrait(&route).contains("blocked:"));
        let reason = "no credit".to_owned();
        for (mixed, would, line) in [
            (false, false, "Blocked retries: 12.0% of failed calls (no credit)"),
            (true, true, "Retries that would be blocked: 12.0% of failed calls (mainly no credit)"),
        ] {
            let blocked = v1::BlockedRetries { share: 0.12, reason: reason.clone(), mixed, would };
            route.blocked_retries = Some(blocked);
            let text = portrait(&route);
            assert!(text.lines().any(|printed| printed == line), "{line}:\n{text}");
        }
    }

    #[test]
    fn every_figure_has_its_line() {
        let route = v1::RouteStats {
            clients: 3,
            breaker_refuses: 1,
            window_failures: 7,
            calls_per_s: 10.0,
            amplification: 1.25,
            p999: Some(prost_types::Duration { seconds: 0, nanos: 12_000_000 }),
            fates: vec![v1::FateRate { fate: v1::Fate::Retry.into(), would: true, per_s: 2.0, total: 9 }],
            served: Some(v1::ServedRates { envoy_repeats_per_s: 0.5, ..Default::default() }),
            ..Default::default()
        };
        let text = portrait(&route);
        for line in [
            "state            retry breaker open at 1 of 3",
            "breaker windows  7 failures, 0 successes",
            "latency          p50 -  p90 -  p99 -  p99.9 12ms",
            "amplification    1.25",
            "rule             none",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}:\n{text}");
        }
        for start in ["calls", "would_retry", "retries by Envoy"] {
            assert!(text.lines().any(|line| line.starts_with(start)), "{start}:\n{text}");
        }
    }
}
