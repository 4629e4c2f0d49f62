//! Statistics of routes as text: rates, shares, times, ages.

use std::time::{SystemTime, UNIX_EPOCH};

use damper_core::fault::Millis;
use damper_proto::{convert, v1};

use crate::input::filter::mode_name;
use crate::input::key;
use crate::output::{Align, Table};

/// Table of routes with their rule and retries by others.
pub(crate) fn routes<'a>(routes: impl IntoIterator<Item = &'a v1::RouteStats>) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("CLIENTS", Right),
        ("CALLS/S", Right),
        ("AMPLIFICATION", Right),
        ("ERRORS", Right),
        ("P99", Right),
        ("COVERAGE", Right),
        ("MODE", Left),
        ("RULE", Left),
        ("RETRIED ELSEWHERE", Left),
    ]);
    for route in routes {
        let figures = [
            route.clients.to_string(),
            rate(route.calls_per_s),
            amplification(route.amplification),
            share(route.error_share),
            time(route.p99.as_ref()),
            coverage(route),
            mode_name(route.mode).to_owned(),
            route.rule.as_ref().map_or_else(|| "none".to_owned(), |rule| key::words(Some(rule))),
            elsewhere(route),
        ];
        table.row(key::route_columns(route.key.as_ref()).into_iter().chain(figures));
    }
    table
}

/// Share of calls within a served request; `-` if no process of the caller serves any.
pub(crate) fn coverage(route: &v1::RouteStats) -> String {
    if route.total_serving_calls == 0 { "-".to_owned() } else { share(route.chain_coverage) }
}

/// Retries of the route's calls by others: a loop in the caller, and gRPC clients and Envoy as seen by the
/// callee for all callers.
fn elsewhere(route: &v1::RouteStats) -> String {
    let served = route.served.unwrap_or_default();
    let parts = [
        ("caller's loop", route.outer_loop_calls_per_s),
        ("gRPC", served.grpc_repeats_per_s),
        ("Envoy", served.envoy_repeats_per_s),
    ];
    let named = parts.iter().filter(|(_, per_s)| *per_s > 0.0);
    let named = named.map(|(who, per_s)| format!("{who} {}/s", small_rate(*per_s)));
    named.collect::<Vec<_>>().join(", ")
}

/// Table of routes with their calls; `at` is the first column if rows of different times follow.
pub(crate) fn stats<'a>(routes: impl IntoIterator<Item = &'a v1::RouteStats>, at: Option<&str>) -> Table {
    use Align::{Left, Right};
    let columns = [
        ("TIME", Left),
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("CALLS/S", Right),
        ("ATTEMPTS/S", Right),
        ("AMPLIFICATION", Right),
        ("HEDGES/S", Right),
        ("ERRORS", Right),
        ("P50", Right),
        ("P99", Right),
        ("MODE", Left),
        ("STATE", Left),
    ];
    let mut table = Table::new(if at.is_some() { &columns } else { &columns[1..] });
    for route in routes {
        let figures = [
            rate(route.calls_per_s),
            rate(route.attempts_per_s),
            amplification(route.amplification),
            rate(route.hedges_per_s),
            share(route.error_share),
            time(route.p50.as_ref()),
            time(route.p99.as_ref()),
            mode_name(route.mode).to_owned(),
            state(route),
        ];
        let time = at.map(str::to_owned);
        let key = key::route_columns(route.key.as_ref());
        table.row(time.into_iter().chain(key).chain(figures));
    }
    table
}

/// Reasons that block retries now, with the number of processes.
pub(crate) fn state(route: &v1::RouteStats) -> String {
    let v1::RouteStats { killed, circuit_open, breaker_refuses, budget_refuses, clients, .. } = route;
    let parts = [
        ("killed", killed),
        ("circuit open", circuit_open),
        ("retry breaker open", breaker_refuses),
        ("budget exhausted", budget_refuses),
    ];
    let holding = parts.iter().filter(|(_, processes)| **processes > 0);
    let holding = holding.map(|(what, processes)| match *processes == clients {
        true => (*what).to_owned(),
        false => format!("{what} at {processes} of {clients}"),
    });
    holding.collect::<Vec<_>>().join(", ")
}

pub(crate) fn rate(per_s: f64) -> String {
    // An empty sum is -0.
    format!("{:.1}", per_s + 0.0)
}

/// Attempts per call; empty without calls.
pub(crate) fn amplification(value: f64) -> String {
    if value > 0.0 { format!("{value:.2}") } else { String::new() }
}

/// Percentage; below 100 % never rounds to 100 %.
pub(crate) fn share(value: f64) -> String {
    let tenths = (value * 1_000.0).round();
    let tenths = if value < 1.0 { tenths.min(999.0) } else { tenths };
    format!("{:.1}%", tenths / 10.0)
}

/// Number with noun: `1 route`, `2 routes`.
pub(crate) fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Number of rules and guards.
pub(crate) fn rules_and_guards(count: usize) -> String {
    if count == 1 { "1 rule or guard".to_owned() } else { format!("{count} rules and guards") }
}

pub(crate) fn time(wire: Option<&prost_types::Duration>) -> String {
    let Some(duration) = wire.copied().and_then(convert::length) else {
        return String::new();
    };
    let us = duration.as_micros();
    match us {
        1_000..10_000 => format!("{}.{}ms", us / 1000, us % 1000 / 100),
        10_000..1_000_000 => format!("{}ms", us / 1000),
        1_000_000..60_000_000 => format!("{}.{}s", us / 1_000_000, us % 1_000_000 / 100_000),
        _ => Millis(duration).to_string(),
    }
}

/// Rate with more digits close to zero.
fn small_rate(per_s: f64) -> String {
    if per_s < 0.05 { format!("{per_s:.3}") } else { rate(per_s) }
}

/// Remaining time, rounded to its greatest unit: 3599 s is 60m.
pub(crate) fn remaining(wire: Option<&prost_types::Duration>) -> String {
    let Some(left) = wire else { return String::new() };
    let seconds = left.seconds + i64::from(left.nanos > 0);
    let nearest = |unit: i64| (seconds + unit / 2) / unit * unit;
    in_greatest_unit(match seconds {
        ..120 => seconds,
        120..7_200 => nearest(60),
        7_200..172_800 => nearest(3_600),
        _ => nearest(86_400),
    })
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Age in its greatest unit, `now` in seconds.
pub(crate) fn age(at: Option<&prost_types::Timestamp>, now: i64) -> String {
    let Some(at) = at else { return String::new() };
    in_greatest_unit(now.saturating_sub(at.seconds))
}

fn in_greatest_unit(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_keep_two_digits_and_no_more() {
        let table = [(0, "0ms"), (250, "250us"), (1_234, "1.2ms"), (12_345, "12ms"), (1_234_567, "1.2s")];
        for (us, shown) in table {
            let wire = prost_types::Duration::try_from(Duration::from_micros(us)).unwrap();
            assert_eq!(time(Some(&wire)), shown);
        }
        assert_eq!(time(None), "");
        assert_eq!(time(Some(&prost_types::Duration { seconds: -1, nanos: 0 })), "");
    }

    #[test]
    fn less_than_everything_never_reads_as_everything() {
        let table =
            [(1.0, "100.0%"), (0.99999, "99.9%"), (0.9994, "99.9%"), (0.1234, "12.3%"), (0.0, "0.0%")];
        for (value, shown) in table {
            assert_eq!(share(value), shown);
        }
    }

    #[test]
    fn a_sum_of_no_rates_is_zero() {
        assert_eq!(rate([].iter().sum()), "0.0");
    }

    #[test]
    fn coverage_is_open_where_no_caller_serves() {
        let whole = v1::RouteStats { chain_coverage: 1.0, ..v1::RouteStats::default() };
        assert_eq!(coverage(&whole), "-");
        assert_eq!(coverage(&v1::RouteStats { total_serving_calls: 1, ..whole }), "100.0%");
    }

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([many(0, "hint"), many(1, "hint"), many(2, "hint")], ["0 hints", "1 hint", "2 hints"]);
        assert_eq!([rules_and_guards(1), rules_and_guards(0)], ["1 rule or guard", "0 rules and guards"]);
    }

    #[test]
    fn ages_use_the_greatest_unit() {
        let at = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
        for (ago, shown) in
            [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")]
        {
            assert_eq!(age(Some(&at(1_000_000 - ago)), 1_000_000), shown);
        }
        assert_eq!(age(None, 0), "");
    }

    #[test]
    fn remaining_time_is_rounded() {
        let left = |seconds, nanos| remaining(Some(&prost_types::Duration { seconds, nanos }));
        for (seconds, nanos, shown) in [
            (3_600, 0, "60m"),
            (3_598, 5, "60m"),
            (3_569, 0, "59m"),
            (86_399, 0, "24h"),
            (7_199, 0, "2h"),
            (119, 0, "119s"),
            (0, 1, "1s"),
            (-1, 0, "0s"),
        ] {
            assert_eq!(left(seconds, nanos), shown, "{seconds}");
        }
        assert_eq!(remaining(None), "");
    }

    #[test]
    fn state_lists_gates_with_process_counts() {
        let route = v1::RouteStats { clients: 3, breaker_refuses: 3, circuit_open: 1, ..Default::default() };
        assert_eq!(state(&route), "circuit open at 1 of 3, retry breaker open");
        assert_eq!(state(&v1::RouteStats { clients: 3, ..Default::default() }), "");
    }

    #[test]
    fn other_retry_sources_have_rates() {
        let served = v1::ServedRates { grpc_repeats_per_s: 1.25, ..Default::default() };
        let route =
            v1::RouteStats { outer_loop_calls_per_s: 0.02, served: Some(served), ..Default::default() };
        assert_eq!(elsewhere(&route), "caller's loop 0.020/s, gRPC 1.2/s");
    }
}
