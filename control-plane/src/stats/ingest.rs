//! Adds one report about routes, part by part.
//!
//! A part is added as a whole or dropped: for an invalid name, totals that are out of date, or a limit: the
//! caller's share of routes, of the bytes of totals and of windows, and the routes of one process. Its failed
//! calls are added or dropped one by one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::Faults;
use damper_proto::v1;

use crate::stats::failed_calls::Failures;
use crate::stats::instance::{Instance, LastReport, Totals};
use crate::stats::shares::Shares;
use crate::stats::timeline::Timeline;
use crate::stats::window::Window;
use crate::stats::{MAX_ROUTES_PER_INSTANCE, Route, RouteRecord, SparseCounters, check_callee, counters};

/// The process and the period of a report.
pub(crate) struct RouteReports<'a> {
    pub(crate) instance: &'a mut Instance,
    pub(crate) caller: (Arc<str>, Arc<str>),
    pub(crate) books: &'a mut HashMap<Route, RouteRecord>,
    pub(crate) routes_of: &'a mut Shares,
    pub(crate) max_routes: usize,
    /// The memory left for the totals of all processes.
    pub(crate) room: &'a mut usize,
    /// The same for windows of routes.
    pub(crate) windows_room: &'a mut usize,
    /// The same for failed calls.
    pub(crate) failures_room: &'a mut usize,
    pub(crate) instance_id: Arc<str>,
    /// Lower totals are out of date; they do not mean a restart.
    pub(crate) falls_are_late: bool,
    /// Set if any total fell.
    pub(crate) fell: &'a mut bool,
    /// True if the process is connected to this replica; reports of peers are not in its counters.
    pub(crate) is_own: bool,
    /// `None` for a new process, which is counted from here on.
    pub(crate) from: Option<Duration>,
    /// The time of arrival, perhaps at another replica.
    pub(crate) at: Duration,
    /// The same by the system clock.
    pub(crate) reported_at: SystemTime,
    pub(crate) now: Duration,
}

impl RouteReports<'_> {
    /// Adds the report of one route; returns the number of dropped parts.
    pub(crate) fn take(&mut self, part: &v1::RouteReport) -> u64 {
        let Some(route) = self.route(part) else { return 1 };
        let (totals, unknown) = Totals::read(part);
        if self.falls_are_late && self.instance.fell(&route, &totals) {
            *self.fell = true;
            return 1;
        }
        let reported = LastReport { totals, state: part.state };
        let space = *self.room + self.instance.route(&route).map_or(0, LastReport::bytes);
        let Some(left) = space.checked_sub(reported.bytes()).filter(|_| *self.windows_room > 0) else {
            return 1;
        };
        *self.room = left;
        let added = self.instance.advance(&route, reported, self.from.is_some());
        let (between, now) = ((self.from.unwrap_or(self.at), self.at), self.now);
        let routes_of = &mut *self.routes_of;
        let book = self.books.entry(route).or_insert_with_key(|route| {
            routes_of.take(&route.caller_service, 1);
            RouteRecord::new(route, between.0, now)
        });
        if let Some(added) = added {
            book.add(&added, between, now, self.is_own);
            let bytes = book.window.bytes();
            let before = std::mem::replace(&mut book.window_bytes, bytes);
            *self.windows_room = (*self.windows_room + before).saturating_sub(bytes);
        }
        let (reported_at, room) = (self.reported_at, &mut *self.failures_room);
        unknown + book.failures.take(&self.instance_id, &part.failed_calls, reported_at, room)
    }

    /// Returns the route of a part, with names shared by all processes; `None` if it is invalid or exceeds a
    /// limit.
    fn route(&self, part: &v1::RouteReport) -> Option<Route> {
        let (caller_service, caller_cluster) = self.caller.clone();
        let route = Route {
            caller_service,
            caller_cluster,
            callee_service: part.callee_service.as_str().into(),
            callee_method: part.callee_method.as_str().into(),
        };
        let route = match self.books.get_key_value(&route) {
            Some((known, _)) => known.clone(),
            None if self.routes_of.room(&route.caller_service, self.max_routes) == 0 => return None,
            None if !acceptable(part) => return None,
            None => route,
        };
        self.instance.has_room_for(&route, MAX_ROUTES_PER_INSTANCE).then_some(route)
    }
}

impl RouteRecord {
    fn new(route: &Route, began: Duration, now: Duration) -> Self {
        Self {
            key: route.key().map(Arc::new),
            window: Window::new(began),
            window_bytes: 0,
            past: Timeline::default(),
            counted: SparseCounters::default(),
            failures: Failures::default(),
            active: now,
        }
    }

    /// Adds the counts of a period.
    fn add(
        &mut self,
        Totals { counts, latency }: &Totals,
        between: (Duration, Duration),
        now: Duration,
        is_own: bool,
    ) {
        if counts.count(counters::CALLS) > 0 || counts.count(counters::ATTEMPTS) > 0 {
            self.active = now;
        }
        let moved: Vec<(u8, u64)> = counts.iter().collect();
        let past = &mut self.past;
        self.window.add(between, now, &moved, latency, |start, counts, latency| {
            past.keep(start, counts, latency);
        });
        past.forget(now);
        if is_own {
            self.counted.add_all(counts);
        }
    }
}

/// True if the names are valid for a route.
fn acceptable(part: &v1::RouteReport) -> bool {
    let mut faults = Faults::none();
    check_callee(&part.callee_service, &part.callee_method, &mut faults);
    faults.is_empty()
}
