//! One process's totals, as it last reported them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Ending, Fate, latency};
use damper_proto::v1;

use super::{Route, Served};
use crate::hub::Session;

/// A long report comes in parts, one right after the other.
const SAME_REPORT_WITHIN: Duration = Duration::from_millis(200);

/// Which process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InstanceId {
    service: String,
    cluster: String,
    instance: String,
}

impl InstanceId {
    pub(super) fn of(session: &Session) -> Self {
        Self {
            service: session.class.service.clone(),
            cluster: session.class.cluster.clone(),
            instance: session.instance.clone(),
        }
    }
}

/// What is counted of one route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) calls: u64,
    pub(super) attempts: u64,
    pub(super) no_context_calls: u64,
    pub(super) hedges: u64,
    pub(super) would_hedges: u64,
    pub(super) outer_loop_calls: u64,
    pub(super) fates: BTreeMap<Ending, u64>,
    pub(super) latency: BTreeMap<u16, u64>,
    /// Parts that could not be read.
    unknown: u64,
}

impl Totals {
    pub(super) fn read(part: &v1::RouteReport) -> Self {
        let mut totals = Self {
            calls: part.calls,
            attempts: part.attempts,
            no_context_calls: part.no_context_calls,
            hedges: part.hedges,
            would_hedges: part.would_hedges,
            outer_loop_calls: part.outer_loop_calls,
            ..Self::default()
        };
        for counted in &part.fates {
            let fate = v1::Fate::try_from(counted.fate).ok().and_then(|fate| Fate::try_from(fate).ok());
            match fate {
                Some(fate) => {
                    let sum = totals.fates.entry(Ending { fate, would: counted.would }).or_default();
                    *sum = sum.saturating_add(counted.count);
                }
                None => totals.unknown += 1,
            }
        }
        for counted in &part.latency {
            match u16::try_from(counted.bucket) {
                Ok(bucket) if usize::from(bucket) < latency::BUCKETS => {
                    let sum = totals.latency.entry(bucket).or_default();
                    *sum = sum.saturating_add(counted.count);
                }
                _ => totals.unknown += 1,
            }
        }
        totals
    }

    /// True if these can not have come from the same counters later on.
    fn fell_behind(&self, before: &Self) -> bool {
        let fell = |now: Option<&u64>, before: &u64| now.is_none_or(|now| now < before);
        self.calls < before.calls
            || self.attempts < before.attempts
            || before.fates.iter().any(|(ending, n)| fell(self.fates.get(ending), n))
    }

    fn since(&self, before: &Self) -> Self {
        let less = |now: u64, before: Option<&u64>| now.saturating_sub(before.copied().unwrap_or(0));
        Self {
            calls: less(self.calls, Some(&before.calls)),
            attempts: less(self.attempts, Some(&before.attempts)),
            no_context_calls: less(self.no_context_calls, Some(&before.no_context_calls)),
            hedges: less(self.hedges, Some(&before.hedges)),
            would_hedges: less(self.would_hedges, Some(&before.would_hedges)),
            outer_loop_calls: less(self.outer_loop_calls, Some(&before.outer_loop_calls)),
            fates: self.fates.iter().map(|(key, n)| (*key, less(*n, before.fates.get(key)))).collect(),
            latency: self.latency.iter().map(|(key, n)| (*key, less(*n, before.latency.get(key)))).collect(),
            unknown: 0,
        }
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.calls = self.calls.saturating_add(more.calls);
        self.attempts = self.attempts.saturating_add(more.attempts);
        self.no_context_calls = self.no_context_calls.saturating_add(more.no_context_calls);
        self.hedges = self.hedges.saturating_add(more.hedges);
        self.would_hedges = self.would_hedges.saturating_add(more.would_hedges);
        self.outer_loop_calls = self.outer_loop_calls.saturating_add(more.outer_loop_calls);
        for (ending, n) in &more.fates {
            let sum = self.fates.entry(*ending).or_default();
            *sum = sum.saturating_add(*n);
        }
    }
}

/// One process.
#[derive(Debug)]
pub(super) struct Instance {
    routes: HashMap<Route, Totals>,
    /// What it serves, by method.
    served: HashMap<Arc<str>, Served>,
    /// The names shared by its routes.
    caller: Option<(Arc<str>, Arc<str>)>,
    streams: usize,
    gone_since: Option<Duration>,
    serves: bool,
    since: Duration,
    /// Held nothing when it came: its counters began about then.
    fresh: bool,
    last_report: Option<Duration>,
    report_before: Option<Duration>,
}

impl Instance {
    pub(super) fn new(now: Duration, fresh: bool) -> Self {
        Self {
            routes: HashMap::new(),
            served: HashMap::new(),
            caller: None,
            streams: 0,
            gone_since: None,
            serves: false,
            since: now,
            fresh,
            last_report: None,
            report_before: None,
        }
    }

    pub(super) fn opened(&mut self, serves: bool) {
        self.streams += 1;
        self.gone_since = None;
        self.serves = serves;
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

    pub(super) fn routes(&self) -> impl Iterator<Item = (&Route, &Totals)> {
        self.routes.iter()
    }

    pub(super) fn served(&mut self) -> &mut HashMap<Arc<str>, Served> {
        &mut self.served
    }

    pub(super) fn caller(&mut self, session: &Session) -> (Arc<str>, Arc<str>) {
        let names = || (session.class.service.as_str().into(), session.class.cluster.as_str().into());
        self.caller.get_or_insert_with(names).clone()
    }

    /// When what a report adds began to be counted: at the last report, else when the counters began. None
    /// where that is unknown; then the report only tells where to count from.
    pub(super) fn counted_from(&self, now: Duration, since: Option<Duration>) -> Option<Duration> {
        let began = since.map(|since| now.saturating_sub(since));
        let last = if self.continues(now) { self.report_before } else { self.last_report };
        last.or(began).or(self.fresh.then_some(self.since))
    }

    pub(super) fn has_room_for(&self, route: &Route, limit: usize) -> bool {
        self.routes.len() < limit || self.routes.contains_key(route)
    }

    /// Moves a route on to new totals; answers what that adds, and how many parts could not be read.
    pub(super) fn advance(
        &mut self,
        route: &Route,
        totals: Totals,
        countable: bool,
    ) -> (Option<Totals>, u64) {
        let unknown = totals.unknown;
        let before = self.routes.get(route);
        let added = match before {
            Some(before) if !totals.fell_behind(before) => Some(totals.since(before)),
            Some(_) => Some(totals.clone()),
            None => countable.then(|| totals.clone()),
        };
        self.routes.insert(route.clone(), totals);
        (added, unknown)
    }

    pub(super) fn reported(&mut self, now: Duration) {
        if !self.continues(now) {
            self.report_before = self.last_report;
        }
        self.last_report = Some(now);
    }

    /// True if a report that comes now is a further part of the last one.
    fn continues(&self, now: Duration) -> bool {
        self.last_report.is_some_and(|last| now.saturating_sub(last) < SAME_REPORT_WITHIN)
    }
}
