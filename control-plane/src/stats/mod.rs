//! Statistics per route, summed from the reports of clients.
//!
//! A report carries totals since its process started. The difference to the last report of the same process
//! is spread evenly over the time between the two and added to the route's window; so a lost report loses
//! nothing, a duplicate adds nothing, and a restarted process begins again at 0. The window ends when every
//! connected process of the route has reported; readers choose its length.
//!
//! Error share = calls with another fate than `ok...` and `cancelled` / calls, real or in observe.
//! Amplification = attempts / calls.

pub(crate) mod blocked_retries;
pub(crate) mod counters;
pub(crate) mod coverage;
pub(crate) mod endpoints;
pub(crate) mod failed_calls;
pub(crate) mod ingest;
pub(crate) mod instance;
pub(crate) mod pattern_totals;
pub(crate) mod rate_window;
pub(crate) mod report_interval;
pub(crate) mod restarts;
pub(crate) mod served;
pub(crate) mod shares;
pub(crate) mod summary;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;
pub(crate) mod top_routes;
pub(crate) mod window;
pub(crate) mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use damper_core::{Code, Ending, Faults, MAX_ROUTES, OTHER_METHOD, RouteKey, key};
use damper_proto::{convert, v1};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clients::session::ClientSession;
use crate::stats::counters::SparseCounters;
use crate::stats::coverage::ReportCoverage;
use crate::stats::failed_calls::Failures;
use crate::stats::ingest::RouteReports;
use crate::stats::instance::{Instance, InstanceId};
use crate::stats::rate_window::RateWindow;
use crate::stats::report_interval::ReportSchedule;
use crate::stats::restarts::ReportOrigin;
use crate::stats::served::ServedCounters;
use crate::stats::served::{ServedBooks, ServedReport};
use crate::stats::shares::Shares;
use crate::stats::summary::SummaryCache;
use crate::stats::timeline::Timeline;
use crate::stats::window::Window;

/// A disconnected process keeps its totals for this time.
const FORGET_GONE_AFTER: Duration = Duration::from_secs(600);
/// A route without calls is hidden after this time.
const FORGET_IDLE_AFTER: Duration = Duration::from_secs(3600);
/// Longer than any process runs: ten years.
const LONG_AGO: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const TIDY_EVERY: Duration = Duration::from_secs(30);
/// The most routes of one process: those that SDKs distinguish, and the rest of as many callees.
const MAX_ROUTES_PER_INSTANCE: usize = 2 * MAX_ROUTES;
/// The most processes with totals.
const MAX_INSTANCES: usize = 50_000;
/// The memory for all statistics, in eighths: the totals of all processes, the windows of all routes, and
/// failed calls. A usual route of a process takes 640 bytes of totals (ten counters and twenty buckets), its
/// window 6 KiB. Data beyond a limit are dropped and counted.
const TOTALS_PART: usize = 4;
const WINDOWS_PART: usize = 3;
const FAILURES_PART: usize = 1;
/// Below this free part, totals of disconnected processes are dropped.
const SCARCE_PART: usize = 10;
const MAKE_ROOM_EVERY: Duration = Duration::from_secs(1);
/// The longest period of a report.
const OLDEST_REPORT: Duration = Duration::from_secs(600);

/// A route as reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Route {
    pub(crate) caller_service: Arc<str>,
    pub(crate) caller_cluster: Arc<str>,
    pub(crate) callee_service: Arc<str>,
    pub(crate) callee_method: Arc<str>,
}

impl Route {
    /// Returns the engine's key; `None` for the sum of the other routes.
    pub(crate) fn key(&self) -> Option<RouteKey> {
        RouteKey::new(&self.caller_service, &self.caller_cluster, &self.callee_service, &self.callee_method)
            .ok()
    }

    /// Returns the route that stands for all routes that are not listed.
    pub(crate) fn others() -> Self {
        let [caller_service, caller_cluster, callee_service, callee_method] =
            [OTHER_METHOD; 4].map(Arc::from);
        Self { caller_service, caller_cluster, callee_service, callee_method }
    }

    pub(crate) fn wire(&self) -> v1::RouteKey {
        v1::RouteKey {
            caller_service: self.caller_service.to_string(),
            caller_cluster: self.caller_cluster.to_string(),
            callee_service: self.callee_service.to_string(),
            callee_method: self.callee_method.to_string(),
        }
    }

    /// Returns the route of this key, known or not.
    pub(crate) fn read(wire: &v1::RouteKey) -> Result<Self, Faults> {
        let v1::RouteKey { caller_service, caller_cluster, callee_service, callee_method } = wire;
        let mut faults = Faults::none();
        key::check_name("caller_service", caller_service, &mut faults);
        key::check_name("caller_cluster", caller_cluster, &mut faults);
        check_callee(callee_service, callee_method, &mut faults);
        faults.or(Self {
            caller_service: caller_service.as_str().into(),
            caller_cluster: caller_cluster.as_str().into(),
            callee_service: callee_service.as_str().into(),
            callee_method: callee_method.as_str().into(),
        })
    }

    pub(crate) fn names(&self) -> [&str; 4] {
        [&self.caller_service, &self.caller_cluster, &self.callee_service, &self.callee_method]
    }
}

/// The counts of one route by clients of this server; they never fall while the route is known.
pub(crate) struct RouteCounters {
    pub(crate) route: Route,
    counts: SparseCounters,
}

impl RouteCounters {
    pub(crate) fn calls(&self) -> u64 {
        self.counts.count(crate::stats::counters::CALLS)
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.counts.count(crate::stats::counters::ATTEMPTS)
    }

    pub(crate) fn retries(&self) -> u64 {
        self.counts.count(crate::stats::counters::RETRIES)
    }

    pub(crate) fn hedges(&self) -> u64 {
        self.counts.count(crate::stats::counters::HEDGES)
    }

    pub(crate) fn would_hedges(&self) -> u64 {
        self.counts.count(crate::stats::counters::WOULD_HEDGES)
    }

    pub(crate) fn outer_loop_calls(&self) -> u64 {
        self.counts.count(crate::stats::counters::OUTER_LOOP_CALLS)
    }

    pub(crate) fn no_context_calls(&self) -> u64 {
        self.counts.count(crate::stats::counters::NO_CONTEXT_CALLS)
    }

    pub(crate) fn fates(&self) -> impl Iterator<Item = (Ending, u64)> {
        crate::stats::counters::endings(&self.counts)
    }

    /// Attempts by code.
    pub(crate) fn codes(&self) -> impl Iterator<Item = (Code, u64)> {
        Code::ALL
            .into_iter()
            .map(|code| (code, self.counts.count(crate::stats::counters::code(code))))
            .filter(|(_, n)| *n > 0)
    }
}

/// The statistics of one server.
pub(crate) struct Stats {
    max_routes: usize,
    max_bytes: usize,
    pace: watch::Receiver<ReportSchedule>,
    start: Instant,
    books: Mutex<StatsState>,
    memo: Mutex<HashMap<RateWindow, SummaryCache>>,
}

/// The known processes and routes.
#[derive(Default)]
struct StatsState {
    instances: HashMap<InstanceId, Instance>,
    routes: HashMap<Route, RouteRecord>,
    served: ServedBooks,
    coverage: ReportCoverage,
    /// Routes, by caller.
    routes_of: Shares,
    /// Bytes of the totals of all processes.
    totals_of: Shares,
    /// Bytes of the windows of all routes.
    windows_of: Shares,
    /// Bytes of failed calls.
    failures_of: Shares,
    tidied: Duration,
    made_room: Duration,
}

/// The data of one route.
pub(crate) struct RouteRecord {
    key: Option<Arc<RouteKey>>,
    window: Window,
    /// The bytes counted for the window.
    window_bytes: usize,
    past: Timeline,
    /// The total by clients of this server since the route became known; never falls.
    counted: SparseCounters,
    failures: Failures,
    active: Duration,
}

impl Stats {
    pub(crate) fn new(max_routes: usize, max_bytes: usize, pace: watch::Receiver<ReportSchedule>) -> Self {
        Self {
            max_routes,
            max_bytes,
            pace,
            start: Instant::now(),
            books: Mutex::default(),
            memo: Mutex::default(),
        }
    }

    /// The most bytes of totals, windows and failed calls.
    fn most(&self) -> [usize; 3] {
        [TOTALS_PART, WINDOWS_PART, FAILURES_PART].map(|part| self.max_bytes / 8 * part)
    }

    fn books(&self) -> MutexGuard<'_, StatsState> {
        self.books.lock().expect("no holder of the lock panics")
    }

    /// Returns the time on a clock that began before the oldest process, so that counts from before these
    /// statistics have a time in the past.
    fn now(&self) -> Duration {
        LONG_AGO + self.start.elapsed()
    }

    /// Adds a report; returns the number of dropped parts.
    pub(crate) fn report(&self, session: &ClientSession, report: &v1::Report) -> u64 {
        self.report_of(session, report, Duration::ZERO)
    }

    /// Adds a report that arrived earlier, perhaps at another replica; returns the number of dropped parts.
    ///
    /// A report on a stream that its process has left may be out of date: only rising totals count, and lower
    /// ones are not counted as evidence against the process.
    pub(crate) fn report_of(&self, session: &ClientSession, report: &v1::Report, age: Duration) -> u64 {
        let now = self.now();
        let at = now.saturating_sub(age.min(OLDEST_REPORT));
        let is_left = session.is_superseded();
        let since = report.since.and_then(convert::length);
        let start = since.map(|since| at.saturating_sub(since));
        let mut books = self.books();
        let books = &mut *books;
        let [for_totals, for_windows, for_failures] = self.most();
        // A service alone gets half of all.
        if books.totals_of.room(&session.class.service, for_totals) < for_totals / SCARCE_PART {
            books.make_room(now);
        }
        let Some(instance) = books.instances.get_mut(&InstanceId::of(session)) else {
            return (report.routes.len() + report.served.len() + report.endpoints.len()) as u64;
        };
        instance.note_serves(report.serves);
        let origin = instance.origin(at, start);
        let from = instance.counted_from(at, start, origin);
        if origin == ReportOrigin::Next {
            books.totals_of.give_back(&session.class.service, instance.bytes());
            instance.restart();
        }
        let caller = instance.caller(session);
        let service = caller.0.clone();
        if let Some(from) = from {
            books.coverage.reported(&caller, from, now);
        }
        let falls_are_late = matches!(origin, ReportOrigin::Same | ReportOrigin::Doubtful)
            || (is_left && origin == ReportOrigin::Unknown);
        let had = books.totals_of.room(&service, for_totals);
        let (mut room, mut fell) = (had, false);
        let had_for_windows = books.windows_of.room(&service, for_windows);
        let had_for_failures = books.failures_of.room(&service, for_failures);
        let (mut windows_room, mut failures_room) = (had_for_windows, had_for_failures);
        let mut routes = RouteReports {
            instance,
            caller,
            books: &mut books.routes,
            routes_of: &mut books.routes_of,
            max_routes: self.max_routes,
            room: &mut room,
            windows_room: &mut windows_room,
            failures_room: &mut failures_room,
            instance_id: session.instance.as_str().into(),
            falls_are_late,
            fell: &mut fell,
            is_own: session.is_own(),
            from,
            at,
            reported_at: SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
            now,
        };
        let mut left_out: u64 = report.routes.iter().map(|part| routes.take(part)).sum();
        let mut by = ServedReport {
            service: &service,
            before: instance.served_mut(),
            room: &mut room,
            falls_are_late,
            fell: &mut fell,
            is_own: session.is_own(),
            from,
            at,
            now,
        };
        for part in &report.served {
            left_out += u64::from(!books.served.report(part, &mut by, self.max_routes));
        }
        // Of an abandoned stream they are out of date.
        if !is_left {
            let endpoints = instance.endpoints_mut();
            left_out +=
                report.endpoints.iter().filter(|part| !endpoints.take(part, &mut room)).count() as u64;
        }
        for (shares, had, left) in [
            (&mut books.totals_of, had, room),
            (&mut books.windows_of, had_for_windows, windows_room),
            (&mut books.failures_of, had_for_failures, failures_room),
        ] {
            shares.take(&service, had);
            shares.give_back(&service, left);
        }
        instance.reported(at, start, origin, fell && !is_left);
        left_out
    }

    /// Returns the instance ids that several connected processes share, as service and instance.
    pub(crate) fn shared_ids(&self) -> Vec<(String, String)> {
        let now = self.now();
        let books = self.books();
        let shared = books.instances.iter().filter(|(_, instance)| instance.is_shared(now));
        shared.map(|(id, _)| (id.service.clone(), id.instance.clone())).collect()
    }

    /// Returns routes with their totals by clients of this server, for Prometheus.
    pub(crate) fn counted(&self) -> Vec<RouteCounters> {
        let books = self.books();
        let counted = |(route, book): (&Route, &RouteRecord)| RouteCounters {
            route: route.clone(),
            counts: book.counted.clone(),
        };
        books.routes.iter().map(counted).collect()
    }

    /// Returns served methods with their totals by clients of this server, for Prometheus.
    pub(crate) fn served(&self) -> Vec<(Arc<str>, Arc<str>, ServedCounters)> {
        self.books().served()
    }

    /// Returns the latest failed calls of a route, the latest first.
    pub(crate) fn failures(&self, route: &Route) -> Vec<v1::RouteFailure> {
        self.books().routes.get(route).map(|book| book.failures.wire(route)).unwrap_or_default()
    }

    /// True if no route is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.books().routes.is_empty()
    }

    /// The keys of all routes that can have a rule.
    pub(crate) fn keys(&self) -> Vec<Arc<RouteKey>> {
        self.books().routes.values().filter_map(|book| book.key.clone()).collect()
    }
}

fn check_callee(service: &str, method: &str, faults: &mut Faults) {
    key::check_name("callee_service", service, faults);
    if method != OTHER_METHOD {
        key::check_method("callee_method", method, faults);
    }
}

impl StatsState {
    /// Drops processes and routes that have been gone or idle for long.
    fn tidy(&mut self, now: Duration) {
        if now.saturating_sub(self.tidied) < TIDY_EVERY {
            return;
        }
        self.tidied = now;
        self.keep_instances(|instance| {
            instance.gone_since().is_none_or(|gone| now.saturating_sub(gone) < FORGET_GONE_AFTER)
        });
        self.routes.retain(|_, book| now.saturating_sub(book.active) < FORGET_IDLE_AFTER);
        self.routes.values_mut().for_each(|book| book.forget(now));
        let by_caller = |taken: fn(&RouteRecord) -> usize| {
            Shares::of(self.routes.iter().map(|(route, book)| (&route.caller_service, taken(book))))
        };
        self.routes_of = by_caller(|_| 1);
        self.windows_of = by_caller(|book| book.window_bytes);
        self.failures_of = by_caller(|book| book.failures.bytes());
        self.served.tidy(now);
        self.coverage.tidy(now);
    }

    /// Drops disconnected processes, to make room for connected ones.
    fn make_room(&mut self, now: Duration) {
        if now.saturating_sub(self.made_room) >= MAKE_ROOM_EVERY {
            self.made_room = now;
            self.keep_instances(Instance::is_connected);
        }
    }

    fn keep_instances(&mut self, is_kept: impl Fn(&Instance) -> bool) {
        let totals_of = &mut self.totals_of;
        self.instances.retain(|id, instance| {
            let kept = is_kept(instance);
            if !kept {
                totals_of.give_back(&id.service, instance.bytes());
            }
            kept
        });
    }
}
