//! One endpoint: address, connections, state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use damper_core::endpoints::{self, EndpointState};

use super::limit::Limit;
use super::stream::{Connection, Load, Room, Sender, Stream};
use super::targets::Place;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) place: Place,
    slot: u32,
    state: EndpointState,
    /// Requests take the first one with room.
    connections: ArcSwap<Vec<Connection>>,
    room: Arc<Room>,
    /// True if the last attempt at a first connection failed.
    has_failed: AtomicBool,
}

impl Endpoint {
    pub(super) fn new(place: Place, slot: u32) -> Self {
        Self {
            place,
            slot,
            state: EndpointState::default(),
            connections: ArcSwap::default(),
            room: Arc::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Returns a stream for one request, with the sender of its connection; `None` if there is none now. See
    /// [`Connection::take`].
    pub(super) fn take(&self) -> Option<(Sender, Stream)> {
        self.connections.load().iter().find_map(Connection::take)
    }

    /// As [`take`](Self::take), but waits while a further connection is opened.
    pub(super) async fn wait(&self) -> Option<(Sender, Stream)> {
        self.room.wait(|| self.take(), || endpoints::Endpoint::is_connected(self)).await
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Returns true if a request waits for a further connection.
    pub(super) fn needs_more(&self) -> bool {
        let connections = self.connections.load();
        let mut open = connections.iter().filter(|connection| connection.is_open()).peekable();
        self.room.is_wanted() && open.peek().is_some() && !open.any(|connection| connection.load.has_room())
    }

    /// Adds a connection, before the others if requests are to prefer it.
    pub(super) fn connected(&self, sender: Sender, limit: Limit, is_first: bool) -> Arc<Load> {
        let new = Connection::new(sender, limit, &self.room);
        let load = Arc::clone(&new.load);
        self.connections.rcu(|connections| {
            let mut connections = Vec::clone(connections);
            connections.insert(if is_first { 0 } else { connections.len() }, new.clone());
            connections
        });
        if is_first {
            self.has_failed.store(false, Ordering::Relaxed);
        }
        self.room.tell();
        load
    }

    pub(super) fn disconnected(&self, load: &Arc<Load>) {
        self.keep(|connection| !Arc::ptr_eq(&connection.load, load));
    }

    /// Removes all connections.
    pub(super) fn leave(&self) {
        self.keep(|_| false);
    }

    fn keep(&self, is_kept: impl Fn(&Connection) -> bool) {
        self.connections.rcu(|connections| {
            connections.iter().filter(|connection| is_kept(connection)).cloned().collect::<Vec<_>>()
        });
        self.room.tell();
    }

    /// Returns the number of open connections.
    #[cfg(feature = "metrics")]
    pub(super) fn connections(&self) -> usize {
        self.connections.load().iter().filter(|connection| connection.is_open()).count()
    }

    /// Returns true if this is a change.
    pub(super) fn failed(&self) -> bool {
        !self.has_failed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

/// The view of an endpoint on which `damper_core` bases its choice.
impl endpoints::Endpoint for Endpoint {
    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn slot(&self) -> u32 {
        self.slot
    }

    fn is_connected(&self) -> bool {
        self.connections.load().iter().any(Connection::is_open)
    }
}
