//! Reports of this process about its calls and the methods that it serves.
//!
//! Counters are cumulative since the process began, so a lost report loses nothing. A report contains the
//! routes, served methods and callees with endpoints that changed since the previous report of the stream.
//! One hash is kept of each, including the state of gates (at most 1,000 of each kind). A long report is
//! split into parts below the message limit.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::mem;
use std::time::Duration;

use damper_core::chain::Repeater;
use damper_core::circuit::Phase;
use damper_core::endpoints::MAX_ZONE_BYTES;
use damper_core::repeat_limit::Served;
use damper_core::{Code, Ending, GateStatus, OTHER_METHOD, Time};
use damper_proto::{convert, v1};

use super::ControlContext;
use super::failed::failed_calls;
use crate::background::turns::Turns;
use crate::balance::{Figures, Standing as EndpointStanding};
use crate::routes::{Callee, RouteHandle, Runtime};

/// Default interval; the server may change it.
const INTERVAL: Duration = Duration::from_secs(5);
/// Accepted intervals; others are ignored.
const ACCEPTED: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Below the control plane's limit of 1 MiB per message, with space for the rest of the report.
const MAX_PART_BYTES: usize = 768 << 10;

/// The reports of one stream.
#[derive(Debug)]
pub(super) struct Reporter {
    interval: Duration,
    /// Hash of the last report of each route, by callee and method.
    routes: HashMap<(String, String), u64>,
    /// Hash of the last report of each served method.
    served: HashMap<String, u64>,
    /// Hash of the last report of each callee's endpoints.
    endpoints: HashMap<String, u64>,
    /// The last report without its lists; `None` before the first report.
    totals: Option<v1::Report>,
}

impl Reporter {
    pub(super) fn new() -> Self {
        Self {
            interval: INTERVAL,
            routes: HashMap::new(),
            served: HashMap::new(),
            endpoints: HashMap::new(),
            totals: None,
        }
    }

    /// Applies the server's settings; returns false if they are out of range.
    pub(super) fn set(&mut self, settings: &v1::ReportSettings) -> bool {
        let interval = settings.interval.and_then(convert::length);
        let Some(interval) = interval.filter(|interval| ACCEPTED.contains(interval)) else {
            return false;
        };
        self.interval = interval;
        true
    }

    /// Returns the wait before the next report: within a tenth of the interval, so that clients spread.
    pub(super) fn wait(&self) -> Duration {
        self.interval.mul_f64(0.9 + 0.2 * fastrand::f64())
    }

    /// Returns the changes in parts; empty if there are none.
    pub(super) async fn parts(&mut self, shared: &ControlContext) -> Vec<v1::Report> {
        let totals = totals(shared);
        let parts = self.changed(&shared.engine).await;
        if parts.is_empty() && self.totals.as_ref() == Some(&totals) {
            return Vec::new();
        }
        self.totals = Some(totals.clone());
        let since = prost_types::Duration::try_from(shared.engine.clock().now().since(Time::ZERO)).ok();
        let report = |Part { routes, served, endpoints, .. }| v1::Report {
            routes,
            served,
            endpoints,
            since,
            ..totals.clone()
        };
        parts.into_all().into_iter().map(report).collect()
    }

    /// Forgets what was reported, after a report that was not sent.
    pub(super) fn forget(&mut self) {
        self.routes.clear();
        self.served.clear();
        self.endpoints.clear();
        self.totals = None;
    }

    async fn changed(&mut self, engine: &Runtime) -> Parts {
        let (mut parts, mut turns) = (Parts::default(), Turns::default());
        let now = engine.clock().now();
        for callee in engine.callees() {
            for (method, route) in callee.routes() {
                let mut report = route_report(callee.name(), &method, &route, now);
                let name = (callee.name().to_owned(), String::from(&*method));
                let is_news = is_news(&mut self.routes, name, &report);
                // Failed calls are reported once, so they are not compared.
                report.failed_calls = failed_calls(route.failures());
                if is_news || !report.failed_calls.is_empty() {
                    parts.with_room_for(&report).routes.push(report);
                }
                turns.done().await;
            }
            if let Some(report) = self.endpoints(&callee) {
                parts.with_room_for(&report).endpoints.push(report);
                turns.done().await;
            }
        }
        for (method, served) in engine.methods().all() {
            let report = served_report(&method, &served);
            if is_news(&mut self.served, String::from(&*method), &report) {
                parts.with_room_for(&report).served.push(report);
            }
            turns.done().await;
        }
        parts
    }
}

impl Reporter {
    /// Returns the report of a callee's endpoints if changed.
    fn endpoints(&mut self, callee: &Callee) -> Option<v1::EndpointsReport> {
        // The callee that stands for several has no endpoints.
        if callee.name() == OTHER_METHOD {
            return None;
        }
        let figures = callee.channels().figures();
        let report = endpoints_report(callee.name(), &figures);
        if figures.count == 0 {
            return self.endpoints.remove(callee.name()).map(|_| report);
        }
        is_news(&mut self.endpoints, callee.name().to_owned(), &report).then_some(report)
    }
}

/// Stores the hash of a report; returns false if unchanged.
fn is_news<K: Eq + Hash>(sent: &mut HashMap<K, u64>, key: K, report: &impl prost::Message) -> bool {
    let mut hasher = DefaultHasher::new();
    hasher.write(&report.encode_to_vec());
    let hash = hasher.finish();
    sent.insert(key, hash) != Some(hash)
}

/// A report in parts below the message limit.
#[derive(Default)]
struct Parts {
    full: Vec<Part>,
    open: Part,
}

#[derive(Default)]
struct Part {
    routes: Vec<v1::RouteReport>,
    served: Vec<v1::ServedReport>,
    endpoints: Vec<v1::EndpointsReport>,
    bytes: usize,
}

impl Parts {
    fn with_room_for(&mut self, report: &impl prost::Message) -> &mut Part {
        let length = report.encoded_len();
        if self.open.bytes + length > MAX_PART_BYTES {
            self.full.push(mem::take(&mut self.open));
        }
        self.open.bytes += length;
        &mut self.open
    }

    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.open.bytes == 0
    }

    /// Returns at least one part, so that totals alone are reported too.
    fn into_all(self) -> Vec<Part> {
        let Self { mut full, open } = self;
        full.push(open);
        full
    }
}

fn totals(shared: &ControlContext) -> v1::Report {
    let status = shared.status.borrow();
    let (calls, no_context_calls) = shared.engine.calls_and_without_context();
    let serves = shared.engine.serves();
    v1::Report {
        routes: Vec::new(),
        no_context_calls,
        governed_calls: if serves { calls } else { 0 },
        serves,
        source: v1::Source::from(status.source).into(),
        override_mode: super::mode_to_wire(status.override_mode),
        since: None,
        served: Vec::new(),
        endpoints: Vec::new(),
    }
}

fn route_report(callee: &str, method: &str, route: &RouteHandle, now: Time) -> v1::RouteReport {
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
        hedges: counters.hedges(),
        would_hedges: counters.would_hedges(),
        outer_loop_calls: counters.outer_loop_calls(),
        state: route.standing(now).map(state),
        failed_calls: Vec::new(),
    }
}

fn state(standing: GateStatus) -> v1::RouteState {
    let GateStatus { window, breaker_refuses, budget_refuses, circuit, killed } = standing;
    let circuit = match circuit {
        None => v1::CircuitState::Unspecified,
        Some(Phase::Closed) => v1::CircuitState::Closed,
        Some(Phase::Open) => v1::CircuitState::Open,
        Some(Phase::HalfOpen) => v1::CircuitState::HalfOpen,
    };
    v1::RouteState {
        window_failures: window.failures,
        window_successes: window.successes,
        breaker_refuses,
        budget_refuses,
        circuit: circuit.into(),
        killed,
    }
}

fn endpoints_report(callee: &str, figures: &Figures) -> v1::EndpointsReport {
    let endpoint = |standing: &EndpointStanding| v1::EndpointReport {
        address: standing.address.to_string(),
        zone: standing.zone.as_deref().map(in_bounds).unwrap_or_default(),
        connected: standing.is_connected,
        ejected: standing.is_ejected,
        in_flight: standing.in_flight,
        recent: standing.recent.all,
        recent_failures: standing.recent.failures,
    };
    v1::EndpointsReport {
        callee_service: callee.to_owned(),
        count: u32::try_from(figures.count).unwrap_or(u32::MAX),
        worst: figures.worst.iter().map(endpoint).collect(),
    }
}

/// Truncates the name of a zone and removes control characters.
fn in_bounds(zone: &str) -> String {
    let zone = zone.get(..zone.floor_char_boundary(MAX_ZONE_BYTES)).unwrap_or(zone);
    zone.chars().filter(|letter| !letter.is_control()).collect()
}

fn served_report(method: &str, served: &Served) -> v1::ServedReport {
    v1::ServedReport {
        method: method.to_owned(),
        first_sends: served.first_sends(),
        damper_repeats: served.repeats(Repeater::Damper),
        grpc_repeats: served.repeats(Repeater::Grpc),
        envoy_repeats: served.repeats(Repeater::Envoy),
        shed_repeats: served.shed(),
        would_shed_repeats: served.would_be_shed(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use prost::Message as _;

    use super::*;
    use crate::balance::{Target, Targets};

    #[test]
    fn settings_out_of_range_are_ignored() {
        let mut reporter = Reporter::new();
        let asked = |seconds, nanos| v1::ReportSettings {
            interval: Some(prost_types::Duration { seconds, nanos }),
            token_ends_at: None,
        };
        for nonsense in [asked(0, 0), asked(-5, 0), asked(0, 99_000_000), asked(i64::MAX, 0), asked(3601, 0)]
        {
            assert!(!reporter.set(&nonsense), "{nonsense:?}");
        }
        assert!(!reporter.set(&v1::ReportSettings::default()));
        assert_eq!(reporter.interval, INTERVAL);
        assert!(reporter.set(&asked(1, 0)));
        for _ in 0..1000 {
            let wait = reporter.wait();
            assert!((Duration::from_millis(900)..=Duration::from_millis(1100)).contains(&wait), "{wait:?}");
        }
    }

    #[test]
    fn a_long_report_yields_to_the_runtime() {
        let engine = Runtime::new("orders", "default");
        let callee = engine.callee("stock").unwrap();
        for number in 0..damper_core::MAX_ROUTES {
            engine.route(&callee, &format!("a.B/M{number}"));
        }
        let mut reporter = Reporter::new();
        let mut parts = std::pin::pin!(reporter.changed(&engine));
        let mut cx = Context::from_waker(Waker::noop());
        let mut turns = 0;
        let parts = loop {
            match parts.as_mut().poll(&mut cx) {
                Poll::Ready(parts) => break parts.into_all(),
                Poll::Pending => turns += 1,
            }
        };
        assert!(turns >= 30, "{turns} turns");
        let routes: usize = parts.iter().map(|part| part.routes.len()).sum();
        assert_eq!(routes, damper_core::MAX_ROUTES);
    }

    /// Waits until endpoints are reported.
    async fn reported_endpoints(reporter: &mut Reporter, engine: &Runtime) -> Vec<v1::EndpointsReport> {
        let reported = async {
            loop {
                let parts = reporter.changed(engine).await.into_all();
                let reported: Vec<_> = parts.into_iter().flat_map(|part| part.endpoints).collect();
                if !reported.is_empty() {
                    return reported;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reported).await.expect("endpoints are reported")
    }

    #[tokio::test]
    async fn changed_endpoints_are_reported_until_the_last_channel_ends() {
        let engine = Runtime::new("orders", "default");
        let callee = engine.callee("stock").unwrap();
        let layer = crate::ClientLayer::new(Arc::clone(&engine), callee);
        let ports = 1..=10;
        let addresses = ports.map(|port| Target::new(format!("127.0.0.1:{port}")).zone("zone-a".repeat(20)));
        let channel = crate::balanced(Targets::new("http://stock").at(addresses)).unwrap();
        let services = [layer.layer(channel.clone()), layer.layer(channel)];
        let mut reporter = Reporter::new();

        let reported = reported_endpoints(&mut reporter, &engine).await;
        let v1::EndpointsReport { callee_service, count, worst } = &reported[0];
        assert_eq!((callee_service.as_str(), *count, worst.len()), ("stock", 10, 8));
        assert_eq!(worst[0].address, "127.0.0.1:1");
        assert_eq!(worst[0].zone.len(), MAX_ZONE_BYTES);
        assert!(!worst[0].connected && !worst[0].ejected && worst[0].recent == 0, "{worst:?}");
        assert!(reporter.changed(&engine).await.is_empty(), "nothing has changed");
        reporter.forget();
        assert_eq!(reported_endpoints(&mut reporter, &engine).await, reported, "complete on a new stream");

        drop(services);
        let gone = reported_endpoints(&mut reporter, &engine).await;
        assert_eq!((gone[0].count, gone[0].worst.len()), (0, 0));
        assert!(reporter.changed(&engine).await.is_empty(), "once");
    }

    #[test]
    fn long_reports_are_split_without_loss() {
        let latency: Vec<_> = (0..256).map(|bucket| v1::BucketCount { bucket, count: u64::MAX }).collect();
        let route = |i: usize| v1::RouteReport {
            callee_method: format!("{i}{}", "x".repeat(255)),
            latency: latency.clone(),
            ..v1::RouteReport::default()
        };
        let mut parts = Parts::default();
        for i in 0..1000 {
            parts.with_room_for(&route(i)).routes.push(route(i));
            let method = format!("{i}{}", "y".repeat(255));
            let served = v1::ServedReport { method, first_sends: u64::MAX, ..v1::ServedReport::default() };
            parts.with_room_for(&served).served.push(served);
        }
        let parts = parts.into_all();
        assert!(parts.len() > 1);
        let (mut routes, mut methods) = (Vec::new(), Vec::new());
        for Part { routes: some, served, .. } in parts {
            let report = v1::Report { routes: some.clone(), served: served.clone(), ..v1::Report::default() };
            assert!(report.encoded_len() <= 1 << 20, "{} bytes", report.encoded_len());
            routes.extend(some.into_iter().map(|route| route.callee_method));
            methods.extend(served.into_iter().map(|served| served.method));
        }
        assert_eq!(routes, (0..1000).map(|i| route(i).callee_method).collect::<Vec<_>>());
        assert_eq!(methods, (0..1000).map(|i| format!("{i}{}", "y".repeat(255))).collect::<Vec<_>>());
    }
}
