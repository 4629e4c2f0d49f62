//! Wake-ups from the writer to the scheduler: lanes in which jobs wait.
//!
//! Per lane only the earliest time is kept, so the channel is bounded by the number of lanes, and a writer
//! never waits for the scheduler, which in turn waits for the writer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use damper_core::job::Wall;
use tokio::sync::Notify;

use crate::store::Lane;

#[derive(Default)]
struct Shared {
    lanes: Mutex<HashMap<Arc<Lane>, Wall>>,
    arrived: Notify,
}

/// The sending side.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

/// The receiving side.
pub struct Wakeups(Arc<Shared>);

/// Returns both sides of a channel.
#[must_use]
pub fn wakeups() -> (Waker, Wakeups) {
    let shared = Arc::new(Shared::default());
    (Waker(shared.clone()), Wakeups(shared))
}

impl Waker {
    /// Adds lanes, each with the time at which a job is due.
    pub fn wake(&self, lanes: impl IntoIterator<Item = (Arc<Lane>, Wall)>) {
        let mut kept = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for (lane, at) in lanes {
            let known = kept.entry(lane).or_insert(at);
            *known = at.min(*known);
        }
        if !kept.is_empty() {
            self.0.arrived.notify_one();
        }
    }
}

impl Wakeups {
    /// Waits until there are lanes, and takes all.
    pub async fn next(&mut self) -> HashMap<Arc<Lane>, Wall> {
        loop {
            let lanes = std::mem::take(&mut *self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner));
            if !lanes.is_empty() {
                return lanes;
            }
            self.0.arrived.notified().await;
        }
    }
}
