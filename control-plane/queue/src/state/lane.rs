//! A lane in memory: its counts and next due times as the store last returned them, and why it is held.
//!
//! Due times come from three sources: each commit reports the lanes in which a job now waits, each request
//! for jobs returns when the next one is due, and once a second all lanes are read. They arrive in any order.
//! So an answer replaces what was known before its request, and not what was reported since.

use std::sync::Arc;

use damper_core::job::Wall;
use tokio::time::Instant;

use crate::queues::{Queues, Stops};
use crate::store::{Lane, LaneCounts, NextDue};

/// Why due jobs are not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// `killed`, `callee_failing`, `stop_when`, `no_worker`, `no_credits`, `released`, `pace`, `rate`,
    /// `max_in_flight`.
    pub why: &'static str,
    /// When it ends, if known.
    pub until: Option<Wall>,
}

impl Held {
    pub(crate) fn until(why: &'static str, until: Wall) -> Self {
        Self { why, until: Some(until) }
    }

    /// A hold that ends with an event.
    pub(crate) fn open(why: &'static str) -> Self {
        Self { why, until: None }
    }
}

/// Jobs of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting for their time, or due.
    pub waiting: u64,
    /// Behind another job.
    pub behind: u64,
    /// Leased, by any server.
    pub leased: u64,
    /// Dead.
    pub dead: u64,
    /// Done, cancelled or expired.
    pub ended: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Counts {
    /// Returns the jobs that have not ended.
    #[must_use]
    pub fn live(self) -> u64 {
        self.waiting + self.behind + self.leased
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.waiting += other.waiting;
        self.behind += other.behind;
        self.leased += other.leased;
        self.dead += other.dead;
        self.ended += other.ended;
        self.bytes += other.bytes;
    }
}

/// Numbers of the last request for jobs and of the last read of all lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) requests: u64,
    pub(crate) reads: u64,
}

/// The earliest due time that was reported since a request.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    request: u64,
    at: Option<Wall>,
}

impl Reported {
    fn add(&mut self, at: Wall, request: u64) {
        let known = self.at.filter(|_| self.request == request);
        *self = Self { request, at: earlier(known, Some(at)) };
    }

    /// Returns when a job is due by the answer of a request and the reports since.
    fn after(self, request: u64, next: NextDue) -> NextDue {
        let reported = self.at.filter(|_| self.request >= request);
        NextDue { any: earlier(next.any, reported), first: earlier(next.first, reported) }
    }
}

fn earlier(a: Option<Wall>, b: Option<Wall>) -> Option<Wall> {
    a.into_iter().chain(b).min()
}

/// A lane.
pub(crate) struct LaneState {
    pub(crate) lane: Arc<Lane>,
    pub(crate) counts: Counts,
    pub(crate) held: Option<Held>,
    /// Since when the store has no job of it.
    pub(crate) empty_since: Instant,
    due: NextDue,
    /// Earliest report since the last request for jobs.
    since_request: Reported,
    /// Earliest report since all lanes were last read.
    since_read: Reported,
    /// What the kills stop, for the queues that it was computed from.
    stops: Option<(Arc<Queues>, Stops)>,
}

impl LaneState {
    pub(crate) fn new(lane: Arc<Lane>, now: Instant) -> Self {
        Self {
            lane,
            counts: Counts::default(),
            held: None,
            empty_since: now,
            due: NextDue::default(),
            since_request: Reported::default(),
            since_read: Reported::default(),
            stops: None,
        }
    }

    /// A job waits from `at` on.
    pub(crate) fn wakes(&mut self, at: Wall, asked: Asked) {
        let any = earlier(self.due.any, Some(at));
        // Whether it was sent before, the report does not contain.
        self.due = NextDue { any, first: earlier(self.due.first, Some(at)) };
        self.since_request.add(at, asked.requests);
        self.since_read.add(at, asked.reads);
    }

    /// Takes over the counts of a read.
    pub(crate) fn refresh(&mut self, counts: &LaneCounts, read: u64) {
        let &LaneCounts { waiting, behind, leased, dead, ended, bytes, .. } = counts;
        self.counts = Counts { waiting, behind, leased, dead, ended, bytes };
        let next = NextDue { any: counts.next_due, first: counts.next_first_due };
        self.due = self.since_read.after(read, next);
    }

    /// A read contained no job of the lane.
    pub(crate) fn clear(&mut self, read: u64, now: Instant) {
        if self.counts != Counts::default() {
            self.empty_since = now;
        }
        self.counts = Counts::default();
        self.due = self.since_read.after(read, NextDue::default());
    }

    /// A request for jobs returned when the next one is due.
    pub(crate) fn answered(&mut self, request: u64, next: NextDue) {
        self.due = self.since_request.after(request, next);
    }

    /// Returns when a job is due; of jobs that were never sent only, if `first_only`.
    pub(crate) fn due(&self, first_only: bool) -> Option<Wall> {
        if first_only { self.due.first } else { self.due.any }
    }

    /// Returns the mean size of a job.
    pub(crate) fn mean_bytes(&self) -> u64 {
        self.counts.bytes.checked_div(self.counts.live() + self.counts.dead).unwrap_or_default()
    }

    /// Returns what the kills stop.
    pub(crate) fn stops(&mut self, queues: &Arc<Queues>) -> Stops {
        match &self.stops {
            Some((of, stops)) if Arc::ptr_eq(of, queues) => *stops,
            _ => {
                let stops = queues.stops(&self.lane.route);
                self.stops = Some((queues.clone(), stops));
                stops
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use damper_core::RouteKey;

    use super::*;

    fn lane() -> LaneState {
        let route = RouteKey::new("orders", "eu", "stock", "p.S/M").unwrap();
        LaneState::new(Arc::new(Lane { queue: "later".to_owned(), route }), Instant::now())
    }

    const ASKED: Asked = Asked { requests: 7, reads: 3 };

    #[test]
    fn answer_replaces_what_was_reported_before_its_request() {
        let mut lane = lane();
        lane.wakes(Wall(50), Asked { requests: 6, ..ASKED });
        let next = NextDue { any: Some(Wall(90)), first: None };
        lane.answered(7, next);
        assert_eq!((lane.due(false), lane.due(true)), (Some(Wall(90)), None));
    }

    #[test]
    fn report_since_a_request_is_not_forgotten() {
        let mut lane = lane();
        lane.wakes(Wall(50), ASKED);
        lane.wakes(Wall(60), ASKED);
        lane.answered(7, NextDue::default());
        assert_eq!(lane.due(false), Some(Wall(50)));
        lane.clear(4, Instant::now());
        assert_eq!(lane.due(false), None, "the read began after the reports");
    }
}
