//! One endpoint: where it is, its connection, and what is known of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use damper_core::endpoints::{self, EndpointState};
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;

use super::targets::Place;

/// The sending half of its connection.
pub(super) type Sender = SendRequest<Body>;

#[derive(Debug)]
struct Connection {
    sender: Sender,
    /// A request found it broken.
    is_broken: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) place: Place,
    slot: u32,
    state: EndpointState,
    connection: ArcSwapOption<Connection>,
    /// The last attempt to connect failed.
    has_failed: AtomicBool,
}

impl Endpoint {
    pub(super) fn new(place: Place, slot: u32) -> Self {
        Self {
            place,
            slot,
            state: EndpointState::default(),
            connection: ArcSwapOption::empty(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// To send a request by. It must not be kept: a connection that has ended lets go of requests that came too late
    /// when the last of these is dropped.
    pub(super) fn sender(&self) -> Option<(Sender, Arc<AtomicBool>)> {
        let connection = self.connection.load();
        let connection = connection.as_deref().filter(|connection| !connection.sender.is_closed())?;
        Some((connection.sender.clone(), Arc::clone(&connection.is_broken)))
    }

    pub(super) fn connected(&self, sender: Sender) {
        self.has_failed.store(false, Ordering::Relaxed);
        self.connection.store(Some(Arc::new(Connection { sender, is_broken: Arc::default() })));
    }

    pub(super) fn disconnected(&self) {
        self.connection.store(None);
    }

    /// True if it was not the case before.
    pub(super) fn failed(&self) -> bool {
        !self.has_failed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

/// What `damper_core` chooses from.
impl endpoints::Endpoint for Endpoint {
    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn slot(&self) -> u32 {
        self.slot
    }

    fn is_connected(&self) -> bool {
        self.connection.load().as_deref().is_some_and(|connection| !connection.sender.is_closed())
    }
}
