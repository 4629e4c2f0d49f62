//! When the rules go to disk: before a snapshot is acknowledged, and within a second of a delta.
//!
//! One task writes; it takes what is held at that moment, so that a burst of deltas is one write. A disk that
//! fails or hangs delays nothing but the first acknowledgement, and that by a bounded time: rules in force
//! matter more than rules kept.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{ControlContext, Stop, last_known_good::StateFile};
use crate::aside;

/// Deltas are gathered for this long.
const GATHER: Duration = Duration::from_millis(300);
/// A disk that has not answered by then is not waited for.
const WAIT: Duration = Duration::from_secs(5);

/// Asks the writing task for writes, and learns of them.
#[derive(Debug)]
pub(super) struct Persister {
    asked: watch::Sender<PersistRequest>,
    /// The number of the latest request that is on disk, or failed to get there.
    done: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PersistRequest {
    number: u64,
    at_once: bool,
}

impl Persister {
    pub(super) fn new() -> Self {
        Self { asked: watch::Sender::default(), done: watch::Sender::default() }
    }

    /// Has what is held written soon.
    pub(super) fn ask(&self) {
        self.asked.send_modify(|asked| asked.number += 1);
    }

    /// Has what is held written now and waits for it, but not for long.
    pub(super) async fn ask_and_wait(&self) {
        self.asked.send_modify(|asked| {
            asked.number += 1;
            asked.at_once = true;
        });
        let number = self.asked.borrow().number;
        let mut done = self.done.subscribe();
        let written = tokio::time::timeout(WAIT, done.wait_for(|done| *done >= number)).await;
        if written.is_err() {
            tracing::warn!("the rules are not on disk after {WAIT:?}; going on without");
        }
    }
}

/// Writes when asked, until the end; what was asked for by then is still written.
pub(super) async fn run(shared: &Arc<ControlContext>, mut stop: Stop) {
    let Some(place) = &shared.place else { return };
    let mut asked = shared.keeper.asked.subscribe();
    let mut failing = false;
    let mut ending = false;
    while !ending {
        tokio::select! {
            changed = asked.wait_for(|asked| asked.number > *shared.keeper.done.borrow()) => {
                if changed.is_err() { return }
            }
            () = stop.stopped() => ending = true,
        }
        let gathered = tokio::time::timeout(GATHER, asked.wait_for(|asked| asked.at_once));
        tokio::select! {
            _ = gathered, if !ending => {}
            () = stop.stopped() => ending = true,
        }
        let mut number = 0;
        shared.keeper.asked.send_if_modified(|asked| {
            number = asked.number;
            asked.at_once = false;
            false
        });
        if number > *shared.keeper.done.borrow() {
            write(shared, place, &mut failing).await;
            shared.keeper.done.send_replace(number);
        }
    }
}

async fn write(shared: &Arc<ControlContext>, place: &StateFile, failing: &mut bool) {
    let (held, writing) = (Arc::clone(shared), place.clone());
    let written = aside::aside(move || {
        let image = held.applier().image(held.present());
        image.map_or(Ok(()), |image| writing.store(image))
    });
    let problem = match written.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(problem) => Some(problem),
    };
    if let Some(problem) = &problem
        && !*failing
    {
        tracing::warn!(file = %place.path().display(), %problem, "the rules cannot be kept on disk");
    }
    *failing = problem.is_some();
}
