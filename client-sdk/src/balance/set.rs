//! The endpoints of a callee, shared by all calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Change, Endpoint as _, Tried};
use http::uri::{Authority, Scheme};
use tokio::sync::watch;
use tonic::ConnectError;
use tonic::transport::Uri;

use super::endpoint::Endpoint;
use super::in_flight::InFlight;
use super::stream::{Sender, Stream};
use super::tried;
use crate::background::clock::Clock;

/// State shared by a balanced channel and its tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    target: Uri,
    /// Requests keep their own authority.
    keeps_authority: bool,
    set: ArcSwap<Set>,
    clock: Clock,
    /// Changes with each connect, disconnect or new set.
    changed: watch::Sender<()>,
    has_ended: AtomicBool,
}

/// The current endpoints.
#[derive(Debug, Default)]
pub(crate) struct Set {
    /// Sorted: endpoints in the caller's zone first.
    endpoints: Vec<Arc<Endpoint>>,
    local: usize,
    /// True once the first discovery has ended, with or without endpoints.
    is_known: bool,
}

/// An endpoint chosen for a request.
pub(super) struct Chosen {
    /// `None` if all its streams are in use.
    pub(super) stream: Option<(Sender, Stream)>,
    pub(super) in_flight: InFlight,
    pub(super) slot: u32,
}

impl Shared {
    pub(super) fn new(target: &Uri, keeps_authority: bool) -> Self {
        Self {
            target: target.clone(),
            keeps_authority,
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

    /// Returns the scheme and authority of requests.
    pub(super) fn authority(&self) -> (Scheme, Authority) {
        let scheme = self.target.scheme().cloned().unwrap_or(Scheme::HTTP);
        let authority = self.target.authority().cloned();
        (scheme, authority.unwrap_or_else(|| Authority::from_static("localhost")))
    }

    pub(super) fn keeps_authority(&self) -> bool {
        self.keeps_authority
    }

    #[cfg(test)]
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn replace(&self, set: Set) {
        self.set.store(Arc::new(set));
        self.tell();
    }

    /// Returns the current endpoints.
    pub(super) fn set(&self) -> Arc<Set> {
        self.set.load_full()
    }

    /// Wakes requests that wait for an endpoint.
    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    /// Returns the endpoint for an attempt, avoiding those in `tried` and those the client layer reports.
    /// `None` if none is connected.
    pub(super) fn choose(self: &Arc<Self>, tried: Tried) -> Option<Chosen> {
        let set = self.set.load_full();
        let (tried, now) = (tried.union(tried::so_far()), self.clock.now());
        let place = endpoints::choose(&set.endpoints, set.local, tried, now, fastrand::u64(..))?;
        let endpoint = set.endpoints.get(place)?;
        let (stream, slot) = (endpoint.take(), endpoint.slot());
        // The connection may just have closed.
        if stream.is_none() && !endpoint.is_connected() {
            return None;
        }
        tried::now(slot);
        Some(Chosen { stream, in_flight: InFlight::begin(Arc::clone(self), set, place), slot })
    }

    /// As [`choose`](Self::choose), but waits while an endpoint may still connect.
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
            // Never closed: `self` holds the sender.
            _ = changes.changed().await;
        }
    }

    /// # Errors
    /// The reason why no endpoint can be expected.
    fn has_hope(&self) -> Result<(), ConnectError> {
        if self.has_ended.load(Ordering::Acquire) {
            return Err(ConnectError("the channel's runtime has ended".into()));
        }
        self.set.load().is_hopeless().map_or(Ok(()), Err)
    }

    /// Marks the channel as ended: no more connections are made.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.tell();
    }

    /// Records how an attempt at an endpoint ended.
    pub(super) fn ended(&self, set: &Set, place: usize, outcome: Outcome) {
        let change = endpoints::ended(&set.endpoints, place, outcome, self.clock.now());
        let (Some(change), Some(endpoint)) = (change, set.endpoints.get(place)) else { return };
        let (target, address) = (&self.target, endpoint.place.address);
        match change {
            Change::Ejected(time) => tracing::warn!(
                target: "damper", %target, %address,
                "endpoint ejected for {time:?}: it fails while others do not"
            ),
            Change::Returned => {
                tracing::info!(target: "damper", %target, %address, "ejected endpoint returned")
            }
        }
    }
}

impl Set {
    /// Sorts the endpoints of the caller's zone first.
    pub(super) fn new(mut endpoints: Vec<Arc<Endpoint>>, zone: Option<&str>) -> Self {
        let is_local = |endpoint: &Arc<Endpoint>| zone.is_some() && endpoint.place.zone.as_deref() == zone;
        endpoints.sort_by_key(|endpoint| !is_local(endpoint));
        let local = endpoints.iter().filter(|endpoint| is_local(endpoint)).count();
        Self { endpoints, local, is_known: true }
    }

    pub(crate) fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// Returns the reason why no endpoint can be expected; `None` while one may connect soon.
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
