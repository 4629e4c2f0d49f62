//! Streams of a connection, counted against the limit of its peer.
//!
//! hyper queues requests beyond the limit, for as long as the streams of that connection last. Here they wait
//! for a stream of any connection to the endpoint, and only while a further connection is being opened. A
//! request that finds room takes no lock. A stream counts until its response ends or is dropped. hyper also
//! waits for the end of its request, so a request that goes on after its response holds one more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hyper::client::conn::http2::SendRequest;
use tokio::sync::Notify;
use tonic::body::Body;

use super::limit::Limit;

/// The sending half of a connection.
pub(super) type Sender = SendRequest<Body>;

/// One of the connections to an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) sender: Sender,
    pub(super) load: Arc<Load>,
}

/// The use of a connection.
#[derive(Debug)]
pub(super) struct Load {
    limit: Limit,
    open: AtomicU32,
    /// True if a stream was taken since the last check.
    is_used: AtomicBool,
    /// True once a request found the connection broken.
    is_broken: AtomicBool,
    room: Arc<Room>,
}

/// A stream of a connection, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Stream(Arc<Load>);

/// Requests that wait for a stream of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Room {
    waiting: AtomicU32,
    /// True while a further connection may be opened.
    can_grow: AtomicBool,
    /// Wakes the task that opens connections.
    wanted: Notify,
    /// Wakes requests.
    changed: Arc<Notify>,
}

impl Connection {
    pub(super) fn new(sender: Sender, limit: Limit, room: &Arc<Room>) -> Self {
        limit.wakes(Arc::clone(&room.changed));
        let room = Arc::clone(room);
        let (is_used, is_broken) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { sender, load: Arc::new(Load { limit, open: AtomicU32::new(0), is_used, is_broken, room }) }
    }

    /// Takes a stream; `None` if the connection is closed, or has none left. The caller must drop the sender
    /// at once: a closed connection only returns unsent requests when the last sender is dropped.
    pub(super) fn take(&self) -> Option<(Sender, Stream)> {
        let stream = self.is_open().then(|| self.load.take()).flatten()?;
        Some((self.sender.clone(), stream))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }
}

impl Load {
    fn take(self: &Arc<Self>) -> Option<Stream> {
        let one_more = |open| (open < self.limit.now()).then_some(open + 1);
        // With SeqCst, either the request sees the stream that became free, or its end sees the request.
        self.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        self.is_used.store(true, Ordering::Relaxed);
        Some(Stream(Arc::clone(self)))
    }

    pub(super) fn has_room(&self) -> bool {
        self.open.load(Ordering::SeqCst) < self.limit.now()
    }

    /// Returns true if there was a stream since the last check.
    pub(super) fn was_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed) || self.open.load(Ordering::SeqCst) > 0
    }
}

impl Stream {
    /// Notes that the connection is broken. Returns true if that was known.
    pub(super) fn found_broken(&self) -> bool {
        self.0.is_broken.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        if self.0.room.is_wanted() {
            self.0.room.changed.notify_one();
        }
    }
}

impl Room {
    /// Waits until `take` returns something, or `has_hope` is false while no connection can be added.
    pub(super) async fn wait<T>(
        &self,
        take: impl Fn() -> Option<T>,
        has_hope: impl Fn() -> bool,
    ) -> Option<T> {
        let _waiting = Waiting::begin(self);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let taken = take();
            if taken.is_some() || !has_hope() || !self.can_grow.load(Ordering::SeqCst) {
                return taken;
            }
            self.wanted.notify_one();
            changed.await;
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Resolves when a request has found no room.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Sets whether requests may wait for a further connection.
    pub(super) fn can_grow(&self, can_grow: bool) {
        self.can_grow.store(can_grow, Ordering::SeqCst);
        self.tell();
    }

    /// Wakes all requests that wait.
    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }
}

/// A request that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn begin(room: &'a Room) -> Self {
        room.waiting.fetch_add(1, Ordering::SeqCst);
        Self(&room.waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
