//! What this process tells the control plane about its calls.
//!
//! Counters are cumulative since the process began, so that a lost report loses nothing. A report names the
//! routes that changed since the last one of this stream. What was sent is remembered as one hash per route
//! (the engine keeps at most 1,000 routes), and a long report goes out in parts below the limit for messages.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::time::Duration;

use damper_core::{Code, Ending, Route, Time};
use damper_proto::v1;
use prost::Message as _;

use super::Shared;
use crate::routes::Engine;

/// How often, until the server says otherwise.
const INTERVAL: Duration = Duration::from_secs(5);
/// What the server may ask for; anything else is ignored.
const ACCEPTED: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Below the control plane's limit of 1 MiB per message, with room for the rest of the report.
const MAX_PART_BYTES: usize = 768 << 10;

/// The reports of one stream.
#[derive(Debug)]
pub(super) struct Reporter {
    interval: Duration,
    /// A hash of the last report of each route, by callee and method.
    sent: HashMap<(String, String), u64>,
    /// The last part without its routes; none before the first report.
    totals: Option<v1::Report>,
}

impl Reporter {
    pub(super) fn new() -> Self {
        Self { interval: INTERVAL, sent: HashMap::new(), totals: None }
    }

    /// Takes over the server's settings; false if they make no sense.
    pub(super) fn set(&mut self, settings: &v1::ReportSettings) -> bool {
        let interval = settings.interval.and_then(|interval| Duration::try_from(interval).ok());
        let Some(interval) = interval.filter(|interval| ACCEPTED.contains(interval)) else {
            return false;
        };
        self.interval = interval;
        true
    }

    /// The wait before the next report: within a tenth of the interval, so that clients spread.
    pub(super) fn wait(&self) -> Duration {
        self.interval.mul_f64(0.9 + 0.2 * fastrand::f64())
    }

    /// What is new, in parts; nothing if nothing is.
    pub(super) fn parts(&mut self, shared: &Shared) -> Vec<v1::Report> {
        let totals = totals(shared);
        let routes = self.changed(&shared.engine);
        if routes.is_empty() && self.totals.as_ref() == Some(&totals) {
            return Vec::new();
        }
        self.totals = Some(totals.clone());
        let since = prost_types::Duration::try_from(shared.engine.clock().now().since(Time::ZERO)).ok();
        in_parts(routes).into_iter().map(|routes| v1::Report { routes, since, ..totals.clone() }).collect()
    }

    /// A report was not sent: everything has to be said again.
    pub(super) fn forget(&mut self) {
        self.sent.clear();
        self.totals = None;
    }

    fn changed(&mut self, engine: &Engine) -> Vec<v1::RouteReport> {
        let mut changed = Vec::new();
        engine.for_each_route(|callee, method, route| {
            let report = route_report(callee, method, route);
            let mut hasher = DefaultHasher::new();
            hasher.write(&report.encode_to_vec());
            let hash = hasher.finish();
            if self.sent.insert((callee.to_owned(), method.to_owned()), hash) != Some(hash) {
                changed.push(report);
            }
        });
        changed
    }
}

fn totals(shared: &Shared) -> v1::Report {
    let status = shared.status.borrow();
    v1::Report {
        routes: Vec::new(),
        no_context_calls: shared.engine.calls_without_context(),
        governed_calls: shared.engine.governed_calls(),
        source: v1::Source::from(status.source).into(),
        override_mode: super::mode_to_wire(status.override_mode),
        since: None,
        served: Vec::new(),
    }
}

/// At least one part, so that totals alone are reported too.
fn in_parts(routes: Vec<v1::RouteReport>) -> Vec<Vec<v1::RouteReport>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for route in routes {
        let length = route.encoded_len();
        if bytes + length > MAX_PART_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(part) = parts.last_mut() {
            part.push(route);
        }
    }
    parts
}

fn route_report(callee: &str, method: &str, route: &Route) -> v1::RouteReport {
    let counters = &route.state().counters;
    let fates = Ending::all().map(|ending| v1::FateCount {
        fate: v1::Fate::from(ending.fate).into(),
        would: ending.would,
        count: counters.ended(ending),
    });
    let codes = Code::ALL
        .into_iter()
        .map(|code| v1::CodeCount { code: v1::Code::from(code).into(), count: counters.code(code) });
    let latency = counters.latency().counts().filter_map(|(bucket, count)| {
        let bucket = u32::try_from(bucket).ok()?;
        Some(v1::BucketCount { bucket, count })
    });
    v1::RouteReport {
        callee_service: callee.to_owned(),
        callee_method: method.to_owned(),
        calls: counters.calls(),
        attempts: counters.attempts(),
        retries: counters.retries(),
        transparent_resends: counters.transparent_resends(),
        fates: fates.filter(|fate| fate.count > 0).collect(),
        codes: codes.filter(|code| code.count > 0).collect(),
        latency: latency.collect(),
        no_context_calls: counters.without_context(),
        hedges: 0,
        would_hedges: 0,
        outer_loop_calls: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_what_makes_sense_are_ignored() {
        let mut reporter = Reporter::new();
        let asked =
            |seconds, nanos| v1::ReportSettings { interval: Some(prost_types::Duration { seconds, nanos }) };
        for nonsense in [asked(0, 0), asked(-5, 0), asked(0, 99_000_000), asked(i64::MAX, 0), asked(3601, 0)]
        {
            assert!(!reporter.set(&nonsense), "{nonsense:?}");
        }
        assert!(!reporter.set(&v1::ReportSettings { interval: None }));
        assert_eq!(reporter.interval, INTERVAL);
        assert!(reporter.set(&asked(1, 0)));
        for _ in 0..1000 {
            let wait = reporter.wait();
            assert!((Duration::from_millis(900)..=Duration::from_millis(1100)).contains(&wait), "{wait:?}");
        }
    }

    #[test]
    fn long_reports_are_parted_below_the_limit_and_lose_no_route() {
        let latency: Vec<_> = (0..256).map(|bucket| v1::BucketCount { bucket, count: u64::MAX }).collect();
        let route = |i: usize| v1::RouteReport {
            callee_method: format!("{i}{}", "x".repeat(255)),
            latency: latency.clone(),
            ..v1::RouteReport::default()
        };
        let parts = in_parts((0..1000).map(route).collect());
        assert!(parts.len() > 1);
        for part in &parts {
            assert!(part.iter().map(prost::Message::encoded_len).sum::<usize>() <= MAX_PART_BYTES);
        }
        let methods: Vec<_> = parts.into_iter().flatten().map(|route| route.callee_method).collect();
        assert_eq!(methods, (0..1000).map(|i| route(i).callee_method).collect::<Vec<_>>());
    }
}
