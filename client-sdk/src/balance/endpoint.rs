//! One endpoint: address, connection, state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use damper_core::endpoints::{self, EndpointState};
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;

use super::targets::Place;

/// The sending half of a connection.
pub(super) type Sender = SendRequest<Body>;

#[derive(Debug)]
struct Connection {
    sender: Sender,
    /// True once a request found the connection broken.
    is_broken: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) place: Place,
    slot: u32,
    state: EndpointState,
    connection: ArcSwapOption<Connection>,
    /// True if the last attempt to connect failed.
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

    /// Returns a sender for one request. The caller must drop it at once: a closed connection only returns
    /// unsent requests when the last sender is dropped.
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
        self.connection.load().as_deref().is_some_and(|connection| !connection.sender.is_closed())
    }
}
