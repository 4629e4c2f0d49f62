//! Numbers of lanes, in memory.
//!
//! Loaded when the store is opened; new lanes are added by the writer. Numbers are never given twice, so a
//! reader of an older state of the store cannot mistake a lane for another.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use damper_core::RouteKey;

use super::error::Error;
use super::record::Lane;

/// Lanes by number and by name.
#[derive(Default)]
pub(super) struct Lanes {
    by_number: HashMap<u32, Arc<Lane>>,
    by_lane: HashMap<Arc<Lane>, LaneNumber>,
}

#[derive(Clone, Copy)]
pub(super) struct LaneNumber {
    pub(super) number: u32,
    pub(super) scope: u128,
}

impl Lanes {
    pub(super) fn insert(&mut self, number: u32, lane: Arc<Lane>) -> LaneNumber {
        let found = LaneNumber { number, scope: lane.scope() };
        self.by_number.insert(number, lane.clone());
        self.by_lane.insert(lane, found);
        found
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(lane) = self.by_number.remove(&number) {
            self.by_lane.remove(&lane);
        }
    }

    pub(super) fn number(&self, lane: &Lane) -> Option<LaneNumber> {
        self.by_lane.get(lane).copied()
    }

    pub(super) fn lane(&self, number: u32) -> Option<Arc<Lane>> {
        self.by_number.get(&number).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns the lanes of a queue.
    pub(super) fn of_queue(&self, queue: &str) -> Vec<(Arc<Lane>, LaneNumber)> {
        let lanes = self.by_lane.iter().filter(|(lane, _)| lane.queue == queue);
        lanes.map(|(lane, number)| (lane.clone(), *number)).collect()
    }
}

/// Lanes that the writer and the readers share.
#[derive(Clone, Default)]
pub(super) struct SharedLanes(Arc<RwLock<Lanes>>);

impl SharedLanes {
    /// No reader panics while it holds the lock; a lane is inserted as a whole.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Lanes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Lanes> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names of a lane in its row.
pub(super) type Names<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

pub(super) fn names(lane: &Lane) -> Names<'_> {
    let route = &lane.route;
    (
        &lane.queue,
        route.caller_service(),
        route.caller_cluster(),
        route.callee_service(),
        route.callee_method(),
    )
}

pub(super) fn lane(number: u32, names: Names<'_>) -> Result<Arc<Lane>, Error> {
    let (queue, caller, cluster, callee, method) = names;
    let route = RouteKey::new(caller, cluster, callee, method)
        .map_err(|faults| Error::Damaged(format!("lane {number}: {faults}")))?;
    Ok(Arc::new(Lane { queue: queue.to_owned(), route }))
}
