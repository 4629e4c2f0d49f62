//! The endpoints of a callee, as all its calls share them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Change, Endpoint as _, Tried};
use http::uri::{Authority, Scheme};
use tokio::sync::watch;
use tonic::ConnectError;
use tonic::transport::Uri;

use super::endpoint::{Endpoint, Sender};
use super::in_flight::InFlight;
use super::tried;
use crate::clock::Clock;

/// What a balanced channel and its tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    target: Uri,
    set: ArcSwap<Set>,
    clock: Clock,
    /// Changes whenever an endpoint is connected, or not, or another.
    changed: watch::Sender<()>,
    has_ended: AtomicBool,
}

/// The endpoints that there are.
#[derive(Debug, Default)]
pub(crate) struct Set {
    /// Those of the caller's zone first.
    endpoints: Vec<Arc<Endpoint>>,
    local: usize,
    /// The first discovery has ended, with endpoints or without.
    is_known: bool,
}

/// An endpoint that a request is to be sent to.
pub(super) struct Chosen {
    pub(super) sender: Sender,
    pub(super) in_flight: InFlight,
    pub(super) slot: u32,
}

impl Shared {
    pub(super) fn new(target: &Uri) -> Self {
        Self {
            target: target.clone(),
            set: ArcSwap::default(),
            clock: Clock::new(),
            changed: watch::channel(()).0,
            has_ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn target(&self) -> &Uri {
        &self.target
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Whom requests name.
    pub(super) fn authority(&self) -> (Scheme, Authority) {
        let scheme = self.target.scheme().cloned().unwrap_or(Scheme::HTTP);
        let authority = self.target.authority().cloned();
        (scheme, authority.unwrap_or_else(|| Authority::from_static("localhost")))
    }

    #[cfg(test)]
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn replace(&self, set: Set) {
        self.set.store(Arc::new(set));
        self.tell();
    }

    /// The endpoints that there are now.
    pub(super) fn set(&self) -> Arc<Set> {
        self.set.load_full()
    }

    /// Wakes the requests that wait for an endpoint.
    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    /// The endpoint for an attempt of a call that has tried these, or others of which the layer above knows; none if
    /// none is connected.
    pub(super) fn choose(self: &Arc<Self>, tried: Tried) -> Option<Chosen> {
        let set = self.set.load_full();
        let (tried, now) = (tried.union(tried::so_far()), self.clock.now());
        let place = endpoints::choose(&set.endpoints, set.local, tried, now, fastrand::u64(..))?;
        let endpoint = set.endpoints.get(place)?;
        // It may just have been lost.
        let (sender, is_broken) = endpoint.sender()?;
        let slot = endpoint.slot();
        tried::now(slot);
        let in_flight = InFlight::begin(Arc::clone(self), set, place, is_broken);
        Some(Chosen { sender, in_flight, slot })
    }

    /// The same; waits while there is hope for one.
    ///
    /// # Errors
    /// No endpoint is connected, and each has failed.
    pub(super) async fn wait(self: &Arc<Self>, tried: Tried) -> Result<Chosen, ConnectError> {
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(chosen) = self.choose(tried) {
                return Ok(chosen);
            }
            self.has_hope()?;
            // Never closed: the sender is in here.
            _ = changes.changed().await;
        }
    }

    /// # Errors
    /// Why there is no endpoint to wait for.
    fn has_hope(&self) -> Result<(), ConnectError> {
        if self.has_ended.load(Ordering::Acquire) {
            return Err(ConnectError("the runtime that the channel was made in has ended".into()));
        }
        self.set.load().is_hopeless().map_or(Ok(()), Err)
    }

    /// Nobody makes connections any more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.tell();
    }

    /// Tells how an attempt at an endpoint ended.
    pub(super) fn ended(&self, set: &Set, place: usize, outcome: Outcome) {
        let change = endpoints::ended(&set.endpoints, place, outcome, self.clock.now());
        let (Some(change), Some(endpoint)) = (change, set.endpoints.get(place)) else { return };
        let (target, address) = (&self.target, endpoint.place.address);
        match change {
            Change::Ejected(time) => tracing::warn!(
                target: "damper", %target, %address,
                "endpoint ejected for {time:?}: it fails and the other endpoints do not"
            ),
            Change::Returned => {
                tracing::info!(target: "damper", %target, %address, "ejected endpoint is used again")
            }
        }
    }
}

impl Set {
    /// With those of the zone first.
    pub(super) fn new(mut endpoints: Vec<Arc<Endpoint>>, zone: Option<&str>) -> Self {
        let is_local = |endpoint: &Arc<Endpoint>| zone.is_some() && endpoint.place.zone.as_deref() == zone;
        endpoints.sort_by_key(|endpoint| !is_local(endpoint));
        let local = endpoints.iter().filter(|endpoint| is_local(endpoint)).count();
        Self { endpoints, local, is_known: true }
    }

    pub(crate) fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// Why there is no endpoint to wait for; none while there may be one soon.
    fn is_hopeless(&self) -> Option<ConnectError> {
        if !self.is_known || self.endpoints.iter().any(|endpoint| !endpoint.has_failed()) {
            return None;
        }
        let words = match self.endpoints.len() {
            0 => "no endpoint is known".to_owned(),
            1 => "the endpoint is not connected".to_owned(),
            all => format!("none of {all} endpoints is connected"),
        };
        Some(ConnectError(words.into()))
    }
}
