//! One endpoint: address, connections, state.
//!
//! A peer limits the streams of a connection. At the limit the endpoint gets another connection, up to
//! [`MAX_CONNECTIONS`]. The limit of a peer is known with its first response; until then requests wait within
//! the connection, as HTTP/2 has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use damper_core::endpoints::{self, EndpointState};
use hyper::client::conn::http2::SendRequest;
use tokio::sync::Notify;
use tonic::body::Body;

use super::targets::Place;

/// Maximum number of connections to one endpoint.
const MAX_CONNECTIONS: usize = 8;

/// The sending half of a connection.
pub(super) type Sender = SendRequest<Body>;

/// What is known of the stream limit of a connection's peer.
#[derive(Debug)]
pub(super) struct StreamLimit {
    streams: AtomicUsize,
    /// True once the peer has responded, so that its settings have arrived.
    is_known: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Connection {
    sender: Sender,
    limit: Arc<StreamLimit>,
    /// Streams in use.
    streams: AtomicUsize,
    /// True once a request found the connection broken.
    is_broken: AtomicBool,
}

/// A stream of a connection, in use until this is dropped.
#[derive(Debug)]
pub(super) struct Stream(Arc<Connection>);

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) place: Place,
    slot: u32,
    state: EndpointState,
    connections: ArcSwap<Vec<Arc<Connection>>>,
    /// True if the last attempt to connect failed.
    has_failed: AtomicBool,
    growth: AtomicU8,
    wanted: Notify,
}

/// No further connection is being made.
const IDLE: u8 = 0;
/// A further connection is wanted or being made.
const GROWING: u8 = 1;
/// The last further connection failed, and the next has to wait.
const PAUSED: u8 = 2;

impl StreamLimit {
    pub(super) fn set(&self, streams: usize) {
        if self.is_known.load(Ordering::Relaxed) {
            self.streams.store(streams, Ordering::Relaxed);
        }
    }
}

impl Default for StreamLimit {
    fn default() -> Self {
        Self { streams: AtomicUsize::new(usize::MAX), is_known: AtomicBool::new(false) }
    }
}

impl Connection {
    fn has_room(&self) -> bool {
        !self.sender.is_closed()
            && self.streams.load(Ordering::Relaxed) < self.limit.streams.load(Ordering::Relaxed)
    }

    fn take(self: &Arc<Self>) -> Option<Stream> {
        if self.sender.is_closed() {
            return None;
        }
        let used = self.streams.fetch_add(1, Ordering::Relaxed);
        let stream = Stream(Arc::clone(self));
        (used < self.limit.streams.load(Ordering::Relaxed)).then_some(stream)
    }
}

impl Stream {
    /// Returns a sender for the request. The caller must drop it at once: a closed connection only returns
    /// unsent requests when the last sender is dropped.
    pub(super) fn sender(&self) -> Sender {
        self.0.sender.clone()
    }

    /// Notes a response.
    pub(super) fn responded(&self) {
        self.0.limit.is_known.store(true, Ordering::Relaxed);
    }

    /// Notes that the connection is broken. Returns true if that was known.
    pub(super) fn broke(&self) -> bool {
        self.0.is_broken.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Endpoint {
    pub(super) fn new(place: Place, slot: u32) -> Self {
        Self {
            place,
            slot,
            state: EndpointState::default(),
            connections: ArcSwap::default(),
            has_failed: AtomicBool::new(false),
            growth: AtomicU8::new(IDLE),
            wanted: Notify::new(),
        }
    }

    /// Returns a stream for one request; `None` if no connection has room.
    pub(super) fn stream(&self) -> Option<Stream> {
        self.connections.load().iter().find_map(Connection::take)
    }

    pub(super) fn connected(&self, sender: Sender, limit: Arc<StreamLimit>) -> Arc<Connection> {
        self.has_failed.store(false, Ordering::Relaxed);
        let (streams, is_broken) = (AtomicUsize::new(0), AtomicBool::new(false));
        let new = Arc::new(Connection { sender, limit, streams, is_broken });
        self.connections.rcu(|known| known.iter().chain([&new]).cloned().collect::<Vec<_>>());
        new
    }

    pub(super) fn disconnected(&self, ended: &Arc<Connection>) {
        self.keep(|connection| !Arc::ptr_eq(connection, ended));
    }

    pub(super) fn disconnect(&self) {
        self.keep(|_| false);
    }

    fn keep(&self, stays: impl Fn(&Arc<Connection>) -> bool) {
        self.connections
            .rcu(|known| known.iter().filter(|connection| stays(connection)).cloned().collect::<Vec<_>>());
    }

    /// Returns true if this is a change.
    pub(super) fn failed(&self) -> bool {
        !self.has_failed.swap(true, Ordering::Relaxed)
    }

    /// Returns true if a connection is open.
    pub(super) fn is_open(&self) -> bool {
        self.connections.load().iter().any(|connection| !connection.sender.is_closed())
    }

    /// Returns true if a request can be expected to find a connection soon. Asks for a further one if all are
    /// full.
    pub(super) fn has_hope(&self) -> bool {
        if !self.is_open() {
            return !self.has_failed.load(Ordering::Relaxed);
        }
        if endpoints::Endpoint::is_connected(self) {
            return true;
        }
        if self.connections.load().len() >= MAX_CONNECTIONS {
            return false;
        }
        match self.growth.compare_exchange(IDLE, GROWING, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => self.wanted.notify_one(),
            Err(PAUSED) => return false,
            Err(_) => {}
        }
        true
    }

    /// Resolves when a further connection is wanted.
    pub(super) async fn wants_more(&self) {
        self.wanted.notified().await;
    }

    /// Notes that no further connection can be made for a time.
    pub(super) fn growth_paused(&self) {
        self.growth.store(PAUSED, Ordering::Relaxed);
    }

    /// Notes that a further connection may be wanted again.
    pub(super) fn growth_ended(&self) {
        self.growth.store(IDLE, Ordering::Relaxed);
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
        self.connections.load().iter().any(|connection| connection.has_room())
    }
}
