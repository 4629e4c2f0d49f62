//! Writes the state file: before a snapshot is acknowledged, and within a second of a delta.
//!
//! One task writes the current state, so a burst of deltas is one write. A disk that fails or hangs delays
//! only the first acknowledgement, for a bounded time: applying rules has priority over storing them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{ControlContext, Stop, state_file::StateFile};
use crate::background::worker;

/// Time for which deltas are collected.
const GATHER: Duration = Duration::from_millis(300);
/// Longest wait for the disk.
const WAIT: Duration = Duration::from_secs(5);

/// Requests writes from the writing task and waits for them.
#[derive(Debug)]
pub(super) struct Persister {
    asked: watch::Sender<PersistRequest>,
    /// Number of the latest request that was written or failed.
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

    /// Requests a write soon.
    pub(super) fn ask(&self) {
        self.asked.send_modify(|asked| asked.number += 1);
    }

    /// Requests a write now and waits for it, up to a limit.
    pub(super) async fn ask_and_wait(&self) {
        self.asked.send_modify(|asked| {
            asked.number += 1;
            asked.at_once = true;
        });
        let number = self.asked.borrow().number;
        let mut done = self.done.subscribe();
        let written = tokio::time::timeout(WAIT, done.wait_for(|done| *done >= number)).await;
        if written.is_err() {
            tracing::warn!("rules not stored on disk within {WAIT:?}; continuing without");
        }
    }
}

/// Writes on request until stopped, including requests made by then.
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
    let written = worker::run_blocking(move || {
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
        tracing::warn!(file = %place.path().display(), %problem, "cannot store the rules on disk");
    }
    *failing = problem.is_some();
}
