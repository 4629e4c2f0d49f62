//! Summaries of routes: one row per route, computed a few times a second at most for all readers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Mode, latency};
use damper_proto::v1;

use crate::state::snapshot::Snapshot;
use crate::stats::blocked_retries::{self, Breaker};
use crate::stats::counters;
use crate::stats::counters::{COUNTERS, SparseCounters};
use crate::stats::instance::{Instance, LastReport};
use crate::stats::rate_window::RateWindow;
use crate::stats::served::Method;
use crate::stats::window::{MAX_LAG, WindowSums};
use crate::stats::{Route, RouteRecord, Stats, StatsState};

/// Rows are shared by all readers within this time.
const FRESH_FOR: Duration = Duration::from_millis(200);
/// The fewest calls in the window for a meaningful share.
pub(crate) const ENOUGH_CALLS: f64 = 20.0;
/// The delivery time of a kill; attempts in flight are counted after it.
const KILL_ARRIVES_WITHIN: Duration = Duration::from_secs(2);
/// Below this share of calls within requests a chain is incomplete: flags are lost on the way.
pub(crate) const WHOLE_COVERAGE: f64 = 0.99;

/// One route and its statistics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteSummary {
    pub(crate) route: Route,
    pub(crate) stats: v1::RouteStats,
}

/// The last computed rows.
pub(crate) struct SummaryCache {
    at: Duration,
    table: Arc<Snapshot>,
    rows: Arc<[Arc<RouteSummary>]>,
}

/// The sums over the processes of one route.
#[derive(Default)]
struct GateTotals {
    connected: u32,
    /// The time up to which all connected processes have reported.
    reported: Option<Duration>,
    totals: SparseCounters,
    /// Including processes with a server layer.
    serving_calls: u64,
    no_context_calls: u64,
    gates: Gates,
}

/// The number of processes with closed gates, and the sums of the breakers' windows.
#[derive(Default)]
struct Gates {
    breaker_refuses: u32,
    budget_refuses: u32,
    circuit_open: u32,
    window_failures: u64,
    window_successes: u64,
}

/// The end and the length of a window.
#[derive(Clone, Copy)]
struct SampleTime {
    now: Duration,
    over: RateWindow,
    /// All live processes have reported up to here.
    settled: Duration,
}

impl Stats {
    /// Returns all routes in the order of their names, with the rules of this snapshot.
    pub(crate) fn rows_over(&self, over: RateWindow, table: &Arc<Snapshot>) -> Arc<[Arc<RouteSummary>]> {
        let now = self.now();
        let mut memo = self.memo.lock().expect("no holder of the lock panics");
        if let Some(memo) = memo.get(&over)
            && now.saturating_sub(memo.at) < FRESH_FOR
            && memo.table.same_rules(table)
        {
            return memo.rows.clone();
        }
        let rows = self.make(now, over, table);
        memo.insert(over, SummaryCache { at: now, table: table.clone(), rows: rows.clone() });
        rows
    }

    /// Returns one route that has been watched for some time, so that its processes report at the shortest
    /// interval.
    pub(crate) fn row(
        &self,
        route: &Route,
        over: RateWindow,
        watched_for: Duration,
        table: &Snapshot,
    ) -> Option<RouteSummary> {
        let now = self.now();
        let (usual, watched) = (lag(self.pace.borrow().kept()), lag(self.pace.borrow().watched()));
        let lag = if watched_for < usual { usual } else { watched };
        let moment = SampleTime { now, over, settled: now.saturating_sub(lag) };
        let mut books = self.books();
        books.tidy(now);
        let mut sources = GateTotals::default();
        for instance in books.instances.values() {
            if let Some(reported) = instance.route(route) {
                sources.take(instance, reported);
            }
        }
        let method = (route.callee_service.clone(), route.callee_method.clone());
        let ends = books.ends_of_served();
        let served = books.served_rates(&method, &ends, moment);
        let stats = books.routes.get(route)?.stats(route, &sources, served, moment, table);
        Some(RouteSummary { route: route.clone(), stats })
    }

    /// Returns the rates of served requests, from any caller.
    pub(crate) fn served_rates(&self, over: RateWindow) -> Vec<(Method, v1::ServedRates)> {
        let now = self.now();
        let settled = now.saturating_sub(lag(self.pace.borrow().kept()));
        let books = self.books();
        let ends = books.ends_of_served();
        let rates = |method: &Method| {
            let rates = books.served_rates(method, &ends, SampleTime { now, over, settled })?;
            Some((method.clone(), rates))
        };
        books.served.methods().filter_map(rates).collect()
    }

    fn make(&self, now: Duration, over: RateWindow, table: &Snapshot) -> Arc<[Arc<RouteSummary>]> {
        let moment = SampleTime { now, over, settled: now.saturating_sub(lag(self.pace.borrow().kept())) };
        let mut books = self.books();
        books.tidy(now);
        let sources = books.sources();
        let ends = books.ends_of_served();
        let none = GateTotals::default();
        let mut rows: Vec<Arc<RouteSummary>> = books
            .routes
            .iter()
            .map(|(route, book)| {
                let sources = sources.get(route).unwrap_or(&none);
                let method = (route.callee_service.clone(), route.callee_method.clone());
                let served = books.served_rates(&method, &ends, moment);
                let stats = book.stats(route, sources, served, moment, table);
                Arc::new(RouteSummary { route: route.clone(), stats })
            })
            .collect();
        rows.sort_by(|a, b| a.route.cmp(&b.route));
        rows.into()
    }
}

/// The longest delay of a report at this interval.
pub(crate) fn lag(interval: Duration) -> Duration {
    (interval.mul_f64(1.25) + Duration::from_secs(1)).min(MAX_LAG)
}

impl StatsState {
    fn sources(&self) -> HashMap<Route, GateTotals> {
        let mut all: HashMap<Route, GateTotals> = HashMap::with_capacity(self.routes.len());
        for instance in self.instances.values() {
            for (route, reported) in instance.routes() {
                let sources = match all.get_mut(route) {
                    Some(sources) => sources,
                    None => all.entry(route.clone()).or_default(),
                };
                sources.take(instance, reported);
            }
        }
        all
    }

    /// The time up to which all connected processes that serve a method have reported.
    fn ends_of_served(&self) -> HashMap<Method, Duration> {
        let mut ends: HashMap<Method, Duration> = HashMap::new();
        for instance in self.instances.values().filter(|instance| instance.is_connected()) {
            let Some(service) = instance.service() else { continue };
            let reported = instance.last_report().unwrap_or_default();
            for method in instance.served() {
                let end = ends.entry((service.clone(), method.clone())).or_insert(reported);
                *end = reported.min(*end);
            }
        }
        ends
    }

    fn served_rates(
        &self,
        method: &Method,
        ends: &HashMap<Method, Duration>,
        SampleTime { over, settled, .. }: SampleTime,
    ) -> Option<v1::ServedRates> {
        let end = ends.get(method).copied().unwrap_or(settled).max(settled);
        self.served.rates(method, end, over.length())
    }
}

impl GateTotals {
    /// Adds the data of one process.
    fn take(&mut self, instance: &Instance, LastReport { totals, state }: &LastReport) {
        self.totals.add_all(&totals.counts);
        if instance.serves() {
            self.serving_calls = self.serving_calls.saturating_add(totals.counts.count(counters::CALLS));
            let without = totals.counts.count(counters::NO_CONTEXT_CALLS);
            self.no_context_calls = self.no_context_calls.saturating_add(without);
        }
        if instance.is_connected() {
            self.connected += 1;
            // A process with known routes has reported.
            let reported = instance.last_report().unwrap_or_default();
            self.reported = Some(self.reported.map_or(reported, |others| others.min(reported)));
            if let Some(state) = state {
                self.gates.take(state);
            }
        }
    }
}

impl Gates {
    fn take(&mut self, state: &v1::RouteState) {
        let is_open = matches!(state.circuit(), v1::CircuitState::Open | v1::CircuitState::HalfOpen);
        self.breaker_refuses += u32::from(state.breaker_refuses);
        self.budget_refuses += u32::from(state.budget_refuses);
        self.circuit_open += u32::from(is_open);
        self.window_failures = self.window_failures.saturating_add(state.window_failures);
        self.window_successes = self.window_successes.saturating_add(state.window_successes);
    }
}

impl RouteRecord {
    /// Returns the statistics up to the time when all have reported, but at least to the settled time.
    fn stats(
        &self,
        route: &Route,
        sources: &GateTotals,
        served: Option<v1::ServedRates>,
        SampleTime { now, over, settled }: SampleTime,
        table: &Snapshot,
    ) -> v1::RouteStats {
        let end = sources.reported.unwrap_or(settled).max(settled);
        let (sums, seconds): (WindowSums<COUNTERS>, f64) = self.window.sums(end, over.length());
        let latencies = self.window.latency(end, over.length());
        let quantile = |share_bp| {
            let duration = latency::quantile(latencies.iter().copied(), share_bp)?;
            prost_types::Duration::try_from(duration).ok()
        };
        let rate = |counter| sums.of(counter) / seconds;
        let (calls, attempts) = (sums.of(counters::CALLS), sums.of(counters::ATTEMPTS));
        let rule = self.key.as_ref().and_then(|key| table.winner(key));
        let endings = || counters::endings(&sources.totals);
        let counters = endings().map(|(ending, _)| counters::ending(ending));
        let failed: f64 = counters.filter(|counter| counters::is_error(*counter)).map(|n| sums.of(n)).sum();
        let fates = endings().map(|(ending, total)| v1::FateRate {
            fate: v1::Fate::from(ending.fate).into(),
            would: ending.would,
            per_s: rate(counters::ending(ending)),
            total,
        });
        let rates = endings().map(|(ending, _)| (ending, rate(counters::ending(ending))));
        let observes = rule.is_some_and(|rule| rule.policy().mode == Mode::Observe);
        let windows = (sources.gates.window_failures, sources.gates.window_successes);
        let blocked_retries = self.key.as_ref().and_then(|key| {
            let breaker = || Breaker::of(table, key, rule.map(|rule| &**rule), windows);
            blocked_retries::blocked(rates, observes, breaker)
        });
        let total = |counter| sources.totals.count(counter);
        let gates = &sources.gates;
        v1::RouteStats {
            key: Some(route.wire()),
            rule: rule.map(|rule| rule.pattern().into()),
            mode: rule.map_or(v1::Mode::Unspecified, |rule| rule.policy().mode.into()).into(),
            clients: sources.connected,
            calls_per_s: calls / seconds,
            attempts_per_s: attempts / seconds,
            amplification: share(attempts, calls),
            error_share: share(failed, calls).min(1.0),
            fates: fates.collect(),
            p50: quantile(5_000),
            p99: quantile(9_900),
            total_calls: total(counters::CALLS),
            total_attempts: total(counters::ATTEMPTS),
            chain_coverage: self.coverage(sources, end),
            total_serving_calls: sources.serving_calls,
            hedges_per_s: rate(counters::HEDGES),
            total_hedges: total(counters::HEDGES),
            total_outer_loop_calls: total(counters::OUTER_LOOP_CALLS),
            p90: quantile(9_000),
            p999: quantile(9_990),
            retries_per_s: rate(counters::RETRIES),
            would_hedges_per_s: rate(counters::WOULD_HEDGES),
            outer_loop_calls_per_s: rate(counters::OUTER_LOOP_CALLS),
            breaker_refuses: gates.breaker_refuses,
            budget_refuses: gates.budget_refuses,
            circuit_open: gates.circuit_open,
            killed: if self.is_killed(table) { sources.connected } else { 0 },
            served,
            window_failures: gates.window_failures,
            window_successes: gates.window_successes,
            awaited_kill: self.awaited_kill(table, now.saturating_sub(end) + over.length()),
            blocked_retries,
        }
    }
}

impl RouteRecord {
    /// True if a kill is in force. Read from the snapshot, because reports are seconds behind; clients that
    /// do not apply it are listed with the clients.
    fn is_killed(&self, table: &Snapshot) -> bool {
        self.key.as_ref().is_some_and(|key| table.kills().of_route(key, SystemTime::now()).is_some())
    }

    /// Returns the kill that stops the route and that rates of this window cannot show yet.
    fn awaited_kill(&self, table: &Snapshot, begun: Duration) -> Option<v1::Pattern> {
        let now = SystemTime::now();
        let kill = table.kills().first_of_route(self.key.as_ref()?, now)?;
        (kill.age(now) < begun + KILL_ARRIVES_WITHIN).then(|| kill.kill.pattern().into())
    }

    /// Returns the share of the last minute's calls that belong to a request, if the caller serves requests;
    /// else 1. With few calls in that minute it is the share of all calls.
    fn coverage(&self, sources: &GateTotals, end: Duration) -> f64 {
        let calls = sources.totals.count(counters::CALLS) as f64;
        let serving = sources.serving_calls as f64;
        if serving <= 0.0 {
            return 1.0;
        }
        let (recent, _): (WindowSums<COUNTERS>, f64) = self.window.sums(end, RateWindow::Minute.length());
        // The window does not distinguish processes; those that do not serve have no calls outside of
        // requests.
        let of_serving = recent.of(counters::CALLS) * serving / calls;
        let (without, of) = if of_serving >= ENOUGH_CALLS {
            (recent.of(counters::NO_CONTEXT_CALLS), of_serving)
        } else {
            (sources.no_context_calls as f64, serving)
        };
        (1.0 - without / of).clamp(0.0, 1.0)
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
