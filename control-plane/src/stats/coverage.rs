//! The times in which processes were connected, to tell missing reports from missing calls.
//!
//! A process without calls reports nothing, but its stream is open. So no report means no call while a
//! process of the caller is connected, and nothing while none is. Counters continue while a process is
//! disconnected, so its next report covers that time, as far as the window reaches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clients::session::ClientSession;
use crate::stats::instance::{Instance, InstanceId};
use crate::stats::shares::Shares;
use crate::stats::timeline::{KEPT, SPAN};
use crate::stats::window::{MAX_LAG, REACH};
use crate::stats::{LONG_AGO, MAX_INSTANCES, Stats};

/// The most callers with recorded times.
const MAX_CALLERS: usize = 50_000;

/// A service and its cluster.
pub(crate) type CallerService = (Arc<str>, Arc<str>);

/// The connected times of every caller, and of all together.
#[derive(Debug, Default)]
pub(crate) struct ReportCoverage {
    all: CoveredSpans,
    callers: HashMap<CallerService, CoveredSpans>,
    /// By service.
    callers_of: Shares,
}

/// Periods in order, with more than a span between them; the last is open while a process is connected.
#[derive(Debug, Default)]
pub(crate) struct CoveredSpans {
    processes: usize,
    times: Vec<(Duration, Duration)>,
}

impl Stats {
    /// Records a new stream of a process.
    pub(crate) fn connected(&self, session: &ClientSession) {
        let now = self.now();
        let books = &mut *self.books();
        books.tidy(now);
        let id = InstanceId::of(session);
        if books.instances.len() >= MAX_INSTANCES {
            books.make_room(now);
        }
        if books.instances.len() < MAX_INSTANCES || books.instances.contains_key(&id) {
            let instance = books.instances.entry(id).or_insert_with(|| Instance::new(now, session.fresh));
            if !instance.is_connected() {
                books.coverage.opened(caller(session), now);
            }
            instance.opened(session.serves());
            // The first report of a stream names all routes.
            books.totals_of.give_back(&session.class.service, instance.endpoints_mut().forget());
        }
    }

    /// Records the end of a stream.
    pub(crate) fn disconnected(&self, session: &ClientSession) {
        let now = self.now();
        let books = &mut *self.books();
        if let Some(instance) = books.instances.get_mut(&InstanceId::of(session)) {
            let was_connected = instance.is_connected();
            instance.closed(now);
            if was_connected && !instance.is_connected() {
                let bytes = instance.endpoints_mut().forget();
                books.totals_of.give_back(&session.class.service, bytes);
                books.coverage.closed(&caller(session), now);
            }
        }
    }
}

fn caller(session: &ClientSession) -> CallerService {
    (session.class.service.as_str().into(), session.class.cluster.as_str().into())
}

impl ReportCoverage {
    /// Adds a connected process.
    fn opened(&mut self, caller: CallerService, now: Duration) {
        self.all.opened(now);
        if let Some(periods) = self.callers.get_mut(&caller) {
            periods.opened(now);
        } else if self.callers_of.room(&caller.0, MAX_CALLERS) > 0 {
            self.callers_of.take(&caller.0, 1);
            self.callers.entry(caller).or_default().opened(now);
        }
    }

    /// Removes a connected process.
    fn closed(&mut self, caller: &CallerService, now: Duration) {
        self.all.closed(now);
        if let Some(periods) = self.callers.get_mut(caller) {
            periods.closed(now);
        }
    }

    /// Records that a connected process reported the time since then, but not before these statistics began.
    pub(crate) fn reported(&mut self, caller: &CallerService, from: Duration, now: Duration) {
        let from = from.max(now.saturating_sub(REACH)).max(LONG_AGO);
        self.all.reported(from);
        if let Some(periods) = self.callers.get_mut(caller) {
            periods.reported(from);
        }
    }

    /// Drops periods older than the timeline.
    pub(crate) fn tidy(&mut self, now: Duration) {
        self.all.forget(now);
        self.callers.values_mut().for_each(|periods| periods.forget(now));
        self.callers.retain(|_, periods| !periods.times.is_empty());
        self.callers_of = Shares::of(self.callers.keys().map(|(service, _)| (service, 1)));
    }

    /// Returns the periods of all callers together.
    pub(crate) fn of_all(&self) -> &CoveredSpans {
        &self.all
    }

    /// Returns the periods of one caller; `None` if it is unknown.
    pub(crate) fn of(&self, caller: &CallerService) -> Option<&CoveredSpans> {
        self.callers.get(caller)
    }
}

impl CoveredSpans {
    fn opened(&mut self, now: Duration) {
        self.processes += 1;
        if self.processes > 1 {
            return;
        }
        match self.times.last_mut() {
            Some((_, until)) if now.saturating_sub(*until) < SPAN => *until = Duration::MAX,
            _ => self.times.push((now, Duration::MAX)),
        }
    }

    fn closed(&mut self, now: Duration) {
        self.processes = self.processes.saturating_sub(1);
        if self.processes == 0
            && let Some((_, until)) = self.times.last_mut()
        {
            *until = now;
        }
    }

    fn reported(&mut self, from: Duration) {
        let Some((since, until)) = self.times.pop() else { return };
        let mut since = since.min(from);
        while let Some((before, _)) = self.times.pop_if(|(_, end)| since.saturating_sub(*end) < SPAN) {
            since = since.min(before);
        }
        self.times.push((since, until));
    }

    fn forget(&mut self, now: Duration) {
        self.times.retain(|(_, until)| now.saturating_sub(*until) < KEPT + MAX_LAG + SPAN);
    }

    /// True if a process was connected all that time.
    pub(crate) fn covers(&self, from: Duration, to: Duration) -> bool {
        self.times.iter().any(|(since, until)| *since <= from && to <= *until)
    }
}
