//! The state of one queue between the passes of the scheduler: lanes, callees, workers, and what is in
//! flight.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{Admit, Callee, Outcome, Queue, Wall};
use damper_core::{RouteKey, Time};
use tokio::time::Instant;

use crate::clock::Now;
use crate::state::lane::{Held, LaneState};
use crate::state::rate::Rate;
use crate::state::totals::Totals;
use crate::state::worker::WorkerNo;
use crate::store::Lane;

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
    /// Leases and reservations of this server.
    pub(crate) in_flight: u32,
    pub(crate) is_dirty: bool,
    /// When the next lane can be served.
    pub(crate) wake: Wall,
    pub(crate) totals: Totals,
    rate: Rate,
    callees: HashMap<String, Callee>,
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
            in_flight: 0,
            is_dirty: true,
            wake: Wall(0),
            totals: Totals::default(),
            rate: Rate::default(),
            callees: HashMap::new(),
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

    /// Asks the callee whether a delivery may begin.
    pub(crate) fn admit(&self, policy: &Queue, route: &RouteKey, now: Time) -> Admit {
        let settings = policy.settings();
        match self.callees.get(route.callee_service()) {
            Some(callee) => callee.admit(settings, route.callee_method(), now),
            None => Callee::default().admit(settings, route.callee_method(), now),
        }
    }

    /// Returns true if `stop_when` ends a job whose delivery failed after this time.
    pub(crate) fn stops(&self, policy: &Queue, route: &RouteKey, took: Duration, now: Time) -> bool {
        let callee = self.callees.get(route.callee_service());
        callee.is_some_and(|callee| callee.stops(policy.settings(), took, now))
    }

    /// Holds all lanes in which a job is due.
    pub(crate) fn hold_due(&mut self, held: Held, now: Wall) {
        for lane in self.lanes.iter_mut() {
            lane.held = lane.due(false).filter(|due| *due <= now).map(|_| held);
        }
    }

    /// Errors if the queue has no room for a further delivery.
    pub(crate) fn own_room(&self, policy: &Queue, now: Now) -> Result<(), Held> {
        let settings = policy.settings();
        if self.in_flight >= settings.max_in_flight {
            return Err(Held::open("max_in_flight"));
        }
        if self.rate.room(settings.rate, now.time) == 0 {
            return Err(Held::until("rate", now.wall + self.rate.wait(now.time)));
        }
        Ok(())
    }

    /// Errors if the queue or the callee of a route has no room for a further delivery.
    pub(crate) fn room(&self, policy: &Queue, route: &RouteKey, now: Now) -> Result<(), Held> {
        self.own_room(policy, now)?;
        match self.admit(policy, route, now.time) {
            Admit::Hold { why, .. } => Err(Held::open(why.name())),
            Admit::Deliver(_) | Admit::Probe => Ok(()),
        }
    }

    /// Counts a delivery that a request to the store reserves.
    pub(crate) fn begin(&mut self, policy: &Queue, route: &RouteKey, now: Time) {
        self.rate.take(policy.settings().rate, 1, now);
        self.resume(policy, route, now);
    }

    /// Counts a delivery in flight that this server did not begin.
    pub(crate) fn resume(&mut self, policy: &Queue, route: &RouteKey, now: Time) {
        self.in_flight = self.in_flight.saturating_add(1);
        self.callee(route).begins(policy.settings(), route.callee_method(), now);
    }

    /// Counts the end of a delivery, or of a reservation that was not used.
    pub(crate) fn end(&mut self, policy: &Queue, route: &RouteKey, outcome: &Outcome, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.callee(route).ended(policy.settings(), route.callee_method(), outcome, now);
        self.is_dirty = true;
    }

    fn callee(&mut self, route: &RouteKey) -> &mut Callee {
        let name = route.callee_service();
        if !self.callees.contains_key(name) {
            self.callees.insert(name.to_owned(), Callee::default());
        }
        self.callees.get_mut(name).expect("it was inserted")
    }
}
