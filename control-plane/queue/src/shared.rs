//! What all parts of a server share: store, writer, clocks, and the state behind its lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use damper_core::Time;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::{Clock, Now};
use crate::state::State;
use crate::store::{ServerId, Store};
use crate::writer::Writer;

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
    /// Jobs in the store when the server started.
    pub(crate) at_start: AtomicU64,
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
}
