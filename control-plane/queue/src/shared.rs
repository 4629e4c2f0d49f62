//! What all parts of a server share: store, writer, clocks, and the state behind its lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use damper_core::Time;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::{Clock, Now};
use crate::state::State;
use crate::store::{Error, ServerId, Store};
use crate::writer::Writer;

/// Time for which a store without room is reported.
const FULL_FOR: Duration = Duration::from_secs(60);

/// Durable jobs over a store. Clones share it.
#[derive(Clone)]
pub struct JobServer {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for JobServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobServer").field("store", &self.inner.store.id()).finish_non_exhaustive()
    }
}

/// What all parts of a server share.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: Writer,
    /// Wakes the scheduler.
    pub(crate) wake: Notify,
    /// Wakes the watch over the ends of leases.
    pub(crate) ends: Notify,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Instant,
    pub(crate) server: AtomicU64,
    pub(crate) state: Mutex<State>,
    /// Held while all lanes are read.
    pub(crate) reading: tokio::sync::Mutex<()>,
    pub(crate) health: Mutex<Health>,
    /// Jobs in the store when the server started.
    pub(crate) at_start: AtomicU64,
}

/// What is known of the store, for operators.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Since when it has not responded, and its last error.
    away: Option<(Instant, String)>,
    /// When it last had no room.
    full_at: Option<Instant>,
    /// Requests for due jobs, and the time that they took.
    commits: u64,
    commit_time: Duration,
}

impl Inner {
    pub(crate) fn now(&self) -> Now {
        let instant = Instant::now();
        let time = Time::after_origin(instant.duration_since(self.started));
        Now { wall: self.clock.wall(), instant, time }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id under which this process keeps leases.
    pub(crate) fn server(&self) -> ServerId {
        ServerId(self.server.load(Ordering::Relaxed))
    }

    /// Records a reading of the store.
    pub(crate) fn note_read(&self, read: Result<(), &Error>) {
        let mut health = self.health();
        health.away = read.err().map(|error| {
            let since = health.away.as_ref().map_or_else(Instant::now, |(since, _)| *since);
            (since, error.to_string())
        });
    }

    /// Records that the store has no room.
    pub(crate) fn note_full(&self) {
        self.health().full_at = Some(Instant::now());
    }

    /// Records a request for due jobs.
    pub(crate) fn note_commit(&self, took: Duration) {
        let mut health = self.health();
        health.commits += 1;
        health.commit_time += took;
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobServer {
    /// Returns for how long the store has not responded, and why; `None` if it does.
    #[must_use]
    pub fn away(&self) -> Option<(Duration, String)> {
        let health = self.inner.health();
        health.away.as_ref().map(|(since, problem)| (since.elapsed(), problem.clone()))
    }

    /// Returns true if a submission was refused within the last minute because the store has no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.inner.health().full_at.is_some_and(|at| at.elapsed() < FULL_FOR)
    }

    /// Returns the number of requests for due jobs so far, and the seconds that they took.
    #[must_use]
    pub fn commits(&self) -> (u64, f64) {
        let health = self.inner.health();
        (health.commits, health.commit_time.as_secs_f64())
    }
}
