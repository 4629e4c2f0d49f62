//! The last reported totals of one process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Code, Ending, Fate};
use damper_proto::v1;

use crate::clients::session::ClientSession;
use crate::stats::Route;
use crate::stats::counters;
use crate::stats::counters::SparseCounters;
use crate::stats::endpoints::Endpoints;
use crate::stats::restarts::{ReportOrigin, RestartTracker};
use crate::stats::served::ServedCounters;

/// The parts of a long report arrive in direct sequence.
const SAME_REPORT_WITHIN: Duration = Duration::from_millis(200);

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InstanceId {
    pub(super) service: String,
    cluster: String,
    pub(super) instance: String,
}

impl InstanceId {
    pub(super) fn of(session: &ClientSession) -> Self {
        Self {
            service: session.class.service.clone(),
            cluster: session.class.cluster.clone(),
            instance: session.instance.clone(),
        }
    }
}

/// The counts of one route: always totals, or always their increase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) counts: SparseCounters,
    /// Calls by latency bucket.
    pub(super) latency: SparseCounters,
}

/// A route as one process last reported it.
#[derive(Debug)]
pub(super) struct LastReport {
    pub(super) totals: Totals,
    /// The state of the rule's gates; `None` if the route has no rule.
    pub(super) state: Option<v1::RouteState>,
}

impl LastReport {
    /// The memory in the process's map, without names, which all processes of a route share.
    pub(super) fn bytes(&self) -> usize {
        size_of::<(Route, Self)>() + self.totals.counts.bytes() + self.totals.latency.bytes()
    }
}

/// The memory of a served method in the process's map.
pub(super) const SERVED_BYTES: usize = size_of::<(Arc<str>, ServedCounters)>();

impl Totals {
    /// Reads a report; also returns the number of unreadable parts.
    pub(super) fn read(part: &v1::RouteReport) -> (Self, u64) {
        let (mut counts, mut latency, mut unknown) =
            (SparseCounters::default(), SparseCounters::default(), 0);
        counts.add(counters::CALLS, part.calls);
        counts.add(counters::ATTEMPTS, part.attempts);
        counts.add(counters::RETRIES, part.retries);
        counts.add(counters::HEDGES, part.hedges);
        counts.add(counters::WOULD_HEDGES, part.would_hedges);
        counts.add(counters::OUTER_LOOP_CALLS, part.outer_loop_calls);
        counts.add(counters::NO_CONTEXT_CALLS, part.no_context_calls);
        for &v1::FateCount { fate, would, count } in &part.fates {
            let fate = v1::Fate::try_from(fate).ok().and_then(|fate| Fate::try_from(fate).ok());
            match fate {
                Some(fate) => counts.add(counters::ending(Ending { fate, would }), count),
                None => unknown += 1,
            }
        }
        for &v1::CodeCount { code, count } in &part.codes {
            match v1::Code::try_from(code).map(Code::from) {
                Ok(code) => counts.add(counters::code(code), count),
                Err(_) => unknown += 1,
            }
        }
        for &v1::BucketCount { bucket, count } in &part.latency {
            match u8::try_from(bucket) {
                Ok(bucket) => latency.add(bucket, count),
                Err(_) => unknown += 1,
            }
        }
        (Self { counts: counts.pack(), latency: latency.pack() }, unknown)
    }

    fn since(&self, before: &Self) -> Self {
        Self { counts: self.counts.since(&before.counts), latency: self.latency.since(&before.latency) }
    }
}

/// One process.
#[derive(Debug)]
pub(crate) struct Instance {
    routes: HashMap<Route, LastReport>,
    /// Served requests, by method.
    served: HashMap<Arc<str>, ServedCounters>,
    endpoints: Endpoints,
    /// The names shared by its routes.
    caller: Option<(Arc<str>, Arc<str>)>,
    streams: usize,
    gone_since: Option<Duration>,
    serves: bool,
    since: Duration,
    /// True if it connected without a revision: its counters began at about that time.
    fresh: bool,
    last_report: Option<Duration>,
    report_before: Option<Duration>,
    origins: RestartTracker,
}

impl Instance {
    pub(super) fn new(now: Duration, fresh: bool) -> Self {
        Self {
            routes: HashMap::new(),
            served: HashMap::new(),
            endpoints: Endpoints::default(),
            caller: None,
            streams: 0,
            gone_since: None,
            serves: false,
            since: now,
            fresh,
            last_report: None,
            report_before: None,
            origins: RestartTracker::default(),
        }
    }

    pub(super) fn opened(&mut self, serves: bool) {
        self.streams += 1;
        self.gone_since = None;
        self.serves = serves;
    }

    /// A server layer may be created after the stream was opened.
    pub(super) fn note_serves(&mut self, serves: bool) {
        self.serves |= serves;
    }

    pub(super) fn closed(&mut self, now: Duration) {
        self.streams = self.streams.saturating_sub(1);
        if self.streams == 0 {
            self.gone_since = Some(now);
        }
    }

    pub(super) fn gone_since(&self) -> Option<Duration> {
        self.gone_since
    }

    pub(super) fn is_connected(&self) -> bool {
        self.streams > 0
    }

    pub(super) fn serves(&self) -> bool {
        self.serves
    }

    pub(super) fn last_report(&self) -> Option<Duration> {
        self.last_report
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = (&Route, &LastReport)> {
        self.routes.iter()
    }

    pub(super) fn route(&self, route: &Route) -> Option<&LastReport> {
        self.routes.get(route)
    }

    pub(super) fn served(&self) -> impl Iterator<Item = &Arc<str>> {
        self.served.keys()
    }

    pub(super) fn served_mut(&mut self) -> &mut HashMap<Arc<str>, ServedCounters> {
        &mut self.served
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    pub(super) fn endpoints_mut(&mut self) -> &mut Endpoints {
        &mut self.endpoints
    }

    /// The service of the process; `None` before its first report.
    pub(super) fn service(&self) -> Option<&Arc<str>> {
        self.caller.as_ref().map(|(service, _)| service)
    }

    pub(super) fn caller(&mut self, session: &ClientSession) -> (Arc<str>, Arc<str>) {
        let names = || (session.class.service.as_str().into(), session.class.cluster.as_str().into());
        self.caller.get_or_insert_with(names).clone()
    }

    /// Identifies the process of a report by the start of its counters.
    pub(super) fn origin(&self, now: Duration, start: Option<Duration>) -> ReportOrigin {
        self.origins.of(now, start)
    }

    /// True if several processes report under the name.
    pub(super) fn is_shared(&self, now: Duration) -> bool {
        self.is_connected() && self.origins.are_several(now)
    }

    /// Returns the start of a report's period: the last report of the same process, else the start of the
    /// counters. `None` if that is unknown; the report then only sets the base.
    pub(super) fn counted_from(
        &self,
        now: Duration,
        start: Option<Duration>,
        origin: ReportOrigin,
    ) -> Option<Duration> {
        if origin == ReportOrigin::Next {
            return start;
        }
        let last = if self.continues(now) { self.report_before } else { self.last_report };
        last.or(start).or(self.fresh.then_some(self.since))
    }

    pub(super) fn has_room_for(&self, route: &Route, limit: usize) -> bool {
        self.routes.len() < limit || self.routes.contains_key(route)
    }

    /// True if the totals of a route fell.
    pub(super) fn fell(&self, route: &Route, totals: &Totals) -> bool {
        self.routes.get(route).is_some_and(|before| !totals.counts.covers(&before.totals.counts))
    }

    /// Stores the totals of a route; returns their increase. Lower totals mean that the process restarted.
    pub(super) fn advance(&mut self, route: &Route, reported: LastReport, countable: bool) -> Option<Totals> {
        let totals = &reported.totals;
        let added = match self.routes.get(route) {
            Some(before) if totals.counts.covers(&before.totals.counts) => Some(totals.since(&before.totals)),
            Some(_) => Some(totals.clone()),
            None => countable.then(|| totals.clone()),
        };
        self.routes.insert(route.clone(), reported);
        added
    }

    /// Drops the totals of the previous process.
    pub(super) fn restart(&mut self) {
        self.routes = HashMap::new();
        self.served = HashMap::new();
        self.endpoints.forget();
    }

    /// Returns all totals, as of the last report.
    pub(super) fn to_report(&self) -> (Vec<v1::RouteReport>, Vec<v1::ServedReport>) {
        let routes = self.routes.iter().map(|(route, reported)| reported.to_report(route));
        let served = self.served.iter().map(|(method, served)| served.report(method));
        (routes.collect(), served.collect())
    }

    /// The start of the counters, if known.
    pub(super) fn start(&self) -> Option<Duration> {
        self.origins.start()
    }

    /// The memory of the totals in bytes.
    pub(super) fn bytes(&self) -> usize {
        let routes: usize = self.routes.values().map(LastReport::bytes).sum();
        routes + self.served.len() * SERVED_BYTES + self.endpoints.bytes()
    }

    /// Records a report, and whether totals in it fell.
    pub(super) fn reported(
        &mut self,
        now: Duration,
        start: Option<Duration>,
        origin: ReportOrigin,
        fell: bool,
    ) {
        if !self.origins.note(now, start, origin, fell) {
            return;
        }
        if origin == ReportOrigin::Next {
            self.report_before = start;
        } else if !self.continues(now) {
            self.report_before = self.last_report;
        }
        self.last_report = self.last_report.max(Some(now));
    }

    /// True if a report at this time is a further part of the last one.
    fn continues(&self, now: Duration) -> bool {
        self.last_report.is_some_and(|last| now.saturating_sub(last) < SAME_REPORT_WITHIN)
    }
}
