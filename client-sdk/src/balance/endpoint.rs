//! One endpoint: where it is, its connection, and what is known of it.

use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use damper_core::endpoints::{self, EndpointState};
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;

use super::targets::Place;

/// The sending half of its connection.
pub(super) type Sender = SendRequest<Body>;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) place: Place,
    slot: u32,
    state: EndpointState,
    sender: ArcSwapOption<Sender>,
    /// The last attempt to connect failed.
    has_failed: AtomicBool,
}

impl Endpoint {
    pub(super) fn new(place: Place, slot: u32) -> Self {
        Self {
            place,
            slot,
            state: EndpointState::default(),
            sender: ArcSwapOption::empty(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// To send a request by. It must not be kept: a connection that has ended lets go of requests that came too late
    /// when the last of these is dropped.
    pub(super) fn sender(&self) -> Option<Sender> {
        self.sender.load().as_deref().filter(|sender| !sender.is_closed()).cloned()
    }

    pub(super) fn connected(&self, sender: Sender) {
        self.has_failed.store(false, Ordering::Relaxed);
        self.sender.store(Some(sender.into()));
    }

    pub(super) fn disconnected(&self) {
        self.sender.store(None);
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
        self.sender.load().as_deref().is_some_and(|sender| !sender.is_closed())
    }
}
