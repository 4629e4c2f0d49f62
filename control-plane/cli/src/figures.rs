//! Figures of routes as people read them: rates, shares, times, ages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use damper_core::fault::Millis;
use damper_core::{Ending, Fate};
use damper_proto::v1;

use crate::filter::mode_name;
use crate::key;
use crate::output::{Align, Table};

/// Routes with what applies to them.
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
    ]);
    for route in routes {
        let figures = [
            route.clients.to_string(),
            rate(route.calls_per_s),
            amplification(route.amplification),
            share(route.error_share),
            time(route.p99.as_ref()),
            share(route.chain_coverage),
            mode_name(route.mode).to_owned(),
            route.rule.as_ref().map_or_else(|| "none".to_owned(), |rule| key::words(Some(rule))),
        ];
        table.row(key::route_columns(route.key.as_ref()).into_iter().chain(figures));
    }
    table
}

/// Routes with how their calls go; `at` is said in each row where rows of different times follow each other.
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
        ("HEDGES/S", Right),
        ("AMPLIFICATION", Right),
        ("ERRORS", Right),
        ("P50", Right),
        ("P99", Right),
        ("MODE", Left),
        ("FATES/S", Left),
    ];
    let mut table = Table::new(if at.is_some() { &columns } else { &columns[1..] });
    for route in routes {
        let figures = [
            rate(route.calls_per_s),
            rate(route.attempts_per_s),
            rate(route.hedges_per_s),
            amplification(route.amplification),
            share(route.error_share),
            time(route.p50.as_ref()),
            time(route.p99.as_ref()),
            mode_name(route.mode).to_owned(),
            fates(&route.fates),
        ];
        let time = at.map(str::to_owned);
        let key = key::route_columns(route.key.as_ref());
        table.row(time.into_iter().chain(key).chain(figures));
    }
    table
}

fn rate(per_s: f64) -> String {
    format!("{per_s:.1}")
}

/// Attempts per call; nothing where there were no calls.
fn amplification(value: f64) -> String {
    if value > 0.0 { format!("{value:.2}") } else { String::new() }
}

fn share(value: f64) -> String {
    format!("{:.1}%", value * 100.0)
}

fn time(wire: Option<&prost_types::Duration>) -> String {
    let Some(duration) = wire.copied().and_then(|wire| Duration::try_from(wire).ok()) else {
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

/// How calls ended, the most frequent first; those that do not happen now are left out.
fn fates(rates: &[v1::FateRate]) -> String {
    let mut rates: Vec<&v1::FateRate> = rates.iter().filter(|rate| rate.per_s > 0.0).collect();
    rates.sort_by(|a, b| b.per_s.total_cmp(&a.per_s));
    let named = rates.into_iter().filter_map(|v1::FateRate { fate, would, per_s, .. }| {
        let fate = Fate::try_from(v1::Fate::try_from(*fate).ok()?).ok()?;
        Some(format!("{} {}", Ending { fate, would: *would }, rate(*per_s)))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// The time now, as the wire says it.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// How long ago in the greatest unit, `now` in seconds.
pub(crate) fn age(at: Option<&prost_types::Timestamp>, now: i64) -> String {
    let Some(at) = at else { return String::new() };
    match now.saturating_sub(at.seconds).max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
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
    fn ages_are_told_in_the_greatest_unit() {
        let at = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
        for (ago, shown) in
            [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")]
        {
            assert_eq!(age(Some(&at(1_000_000 - ago)), 1_000_000), shown);
        }
        assert_eq!(age(None, 0), "");
    }

    #[test]
    fn fates_are_named_as_everywhere_the_most_frequent_first() {
        let fate = |fate: v1::Fate, would, per_s| v1::FateRate { fate: fate.into(), would, per_s, total: 9 };
        let rates = [
            fate(v1::Fate::Retry, true, 2.0),
            fate(v1::Fate::Ok, false, 97.25),
            fate(v1::Fate::Deadline, false, 0.0),
        ];
        assert_eq!(fates(&rates), "ok 97.2, would_retry 2.0");
    }
}
