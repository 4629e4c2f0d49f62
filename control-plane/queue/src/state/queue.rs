//! The state of one queue between the passes of the scheduler: lanes, callees, workers, and what is in
//! flight.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{Admit, Flow, Outcome, Queue, Wall};
use damper_core::{RouteKey, Time};
use tokio::time::Instant;

use crate::clock::Now;
use crate::state::lane::{Held, LaneState};
use crate::state::refusals::Refusals;
use crate::state::totals::Totals;
use crate::state::worker::WorkerNo;
use crate::store::{Lane, Refused};

/// A queue that has jobs or workers, or had some.
pub(crate) struct QueueState {
    pub(crate) name: Arc<str>,
    pub(crate) lanes: Lanes,
    /// The last policy, for jobs in flight when it is deleted.
    pub(crate) policy: Option<Arc<Queue>>,
    /// Why nothing is delivered; empty: deliveries are possible.
    pub(crate) held: &'static str,
    /// Streams that named the queue.
    pub(crate) workers: Vec<WorkerNo>,
    pub(crate) next_worker: usize,
    pub(crate) is_dirty: bool,
    /// When the next lane can be served.
    pub(crate) wake: Wall,
    pub(crate) totals: Totals,
    /// Leases and reservations of this server.
    flow: Flow,
    /// Refusals of the store.
    refusals: Refusals,
}

/// The lanes of a queue, in a fixed order for their turns.
#[derive(Default)]
pub(crate) struct Lanes {
    pub(crate) cursor: usize,
    list: Vec<LaneState>,
    places: HashMap<RouteKey, usize>,
}

impl Lanes {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the lane at a place below [`Self::len`].
    pub(crate) fn at(&mut self, place: usize) -> &mut LaneState {
        &mut self.list[place]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LaneState> {
        self.list.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LaneState> {
        self.list.iter_mut()
    }

    pub(crate) fn get(&self, route: &RouteKey) -> Option<&LaneState> {
        self.places.get(route).map(|place| &self.list[*place])
    }

    pub(crate) fn get_mut(&mut self, route: &RouteKey) -> Option<&mut LaneState> {
        self.places.get(route).map(|place| &mut self.list[*place])
    }

    /// Returns the lane, a new one if there is none.
    pub(crate) fn entry(&mut self, lane: &Arc<Lane>, now: Instant) -> &mut LaneState {
        let place = *self.places.entry(lane.route.clone()).or_insert_with(|| {
            self.list.push(LaneState::new(lane.clone(), now));
            self.list.len() - 1
        });
        &mut self.list[place]
    }

    /// Removes the lanes for which `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&LaneState) -> bool) {
        if self.list.iter().all(&keep) {
            return;
        }
        self.list.retain(&keep);
        let places = self.list.iter().enumerate().map(|(place, lane)| (lane.lane.route.clone(), place));
        self.places = places.collect();
    }
}

impl QueueState {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            lanes: Lanes::default(),
            policy: None,
            held: "",
            workers: Vec::new(),
            next_worker: 0,
            is_dirty: true,
            wake: Wall(0),
            totals: Totals::default(),
            flow: Flow::default(),
            refusals: Refusals::default(),
        }
    }

    /// Returns true if the scheduler must visit the queue.
    pub(crate) fn needs_pass(&self, now: Wall) -> bool {
        self.is_dirty || self.wake <= now
    }

    /// The scheduler visits the queue at this time, if not sooner.
    pub(crate) fn wakes(&mut self, at: Option<Wall>) {
        self.wake = at.map_or(self.wake, |at| at.min(self.wake));
    }

    /// Returns true if `stop_when` ends a job whose delivery failed after this time.
    pub(crate) fn stops(&self, policy: &Queue, route: &RouteKey, took: Duration, now: Time) -> bool {
        self.flow.stops(policy.settings(), route, took, now)
    }

    /// Holds all lanes in which a job is due.
    pub(crate) fn hold_due(&mut self, held: Held, now: Wall) {
        for lane in self.lanes.iter_mut() {
            lane.held = lane.due(false).filter(|due| *due <= now).map(|_| held);
        }
    }

    /// Errors if the queue has no room for a further delivery.
    pub(crate) fn own_room(&self, policy: &Queue, now: Now) -> Result<(), Held> {
        let refused = self.refusals.of_queue(now.time);
        admitted(refused.unwrap_or_else(|| self.flow.room(policy.settings(), now.time)), now).map(|_| ())
    }

    /// Returns true if a delivery of a route would be a probe; errors if none may begin.
    pub(crate) fn admit(&self, policy: &Queue, route: &RouteKey, now: Now) -> Result<bool, Held> {
        let refused = self.refusals.of_callee(route.callee_service(), now.time);
        admitted(refused.unwrap_or_else(|| self.flow.admit(policy.settings(), route, now.time)), now)
    }

    /// Counts a delivery that a request to the store reserves.
    pub(crate) fn begin(&mut self, policy: &Queue, route: &RouteKey, now: Time) {
        self.flow.begins(policy.settings(), route, now);
    }

    /// Counts a delivery in flight that this server did not begin.
    pub(crate) fn resume(&mut self, policy: &Queue, route: &RouteKey, now: Time) {
        self.flow.resumes(policy.settings(), route, now);
    }

    /// Counts the end of a reservation that was not used.
    pub(crate) fn unused(&mut self, policy: &Queue, route: &RouteKey, was_probe: bool, now: Time) {
        self.flow.unused(policy.settings(), route, was_probe, now);
        self.is_dirty = true;
    }

    /// The store refused jobs of this route. If it got none, its lane is the first one of the next pass;
    /// otherwise the lanes behind it have their turn.
    pub(crate) fn refused(&mut self, route: &RouteKey, refused: Refused, got_none: bool, now: Time) {
        self.refusals.add(route.callee_service(), refused, now);
        if got_none && let Some(place) = self.lanes.places.get(route) {
            self.lanes.cursor = *place;
        }
    }

    /// Counts the end of a delivery.
    pub(crate) fn end(&mut self, policy: &Queue, route: &RouteKey, outcome: &Outcome, now: Time) {
        self.flow.ended(policy.settings(), route, outcome, now);
        self.refusals.ended(route.callee_service());
        self.is_dirty = true;
    }
}

/// Returns true for a probe; errors with the hold.
fn admitted(admit: Admit, now: Now) -> Result<bool, Held> {
    match admit {
        Admit::Deliver(_) => Ok(false),
        Admit::Probe => Ok(true),
        Admit::Hold { why, until } => {
            let until = until.map(|until| now.wall + until.since(now.time));
            Err(Held { why: why.name(), until })
        }
    }
}
