//! State of a callee's endpoints, as reported to the control plane.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use damper_core::endpoints::{Counts, Endpoint as _, MAX_REPORTED, MAX_REPORTED_CHANNELS};

use super::Balanced;
use super::endpoint::Endpoint;
use super::set::Shared;

/// The channels to one callee, held weakly: a channel ends with its last user.
#[derive(Debug, Default)]
pub(crate) struct Channels(Mutex<Vec<Weak<Shared>>>);

/// Endpoints of all channels to one callee.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Number of endpoints.
    pub(crate) count: usize,
    /// At most [`MAX_REPORTED`], worst first.
    pub(crate) worst: Vec<Standing>,
}

/// Number of endpoints by state, and of connections to them.
#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct States {
    pub(crate) connected: usize,
    /// Connected, but avoided by requests.
    pub(crate) ejected: usize,
    pub(crate) not_connected: usize,
    pub(crate) connections: usize,
}

/// State of one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) address: SocketAddr,
    pub(crate) zone: Option<Arc<str>>,
    pub(crate) is_connected: bool,
    pub(crate) is_ejected: bool,
    pub(crate) in_flight: u32,
    pub(crate) recent: Counts,
}

impl Channels {
    /// Adds a channel, unless it is known or there are [`MAX_REPORTED_CHANNELS`].
    pub(crate) fn add(&self, channel: &Balanced) {
        let new = Arc::downgrade(channel.shared());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|channel| channel.strong_count() > 0);
        if known.len() < MAX_REPORTED_CHANNELS && !known.iter().any(|channel| channel.ptr_eq(&new)) {
            known.push(new);
        }
    }

    /// Returns the numbers by state; `None` if there was no channel yet.
    #[cfg(feature = "metrics")]
    pub(crate) fn states(&self) -> Option<States> {
        let channels = self.known();
        if channels.is_empty() {
            return None;
        }
        let sets = channels.iter().filter_map(Weak::upgrade).map(|channel| channel.set());
        let connections =
            sets.map(|set| set.endpoints().iter().map(|endpoint| endpoint.connections()).sum::<usize>());
        let mut states = States { connections: connections.sum(), ..States::default() };
        for standing in Self::standings(&channels).values() {
            *match (standing.is_connected, standing.is_ejected) {
                (false, _) => &mut states.not_connected,
                (true, true) => &mut states.ejected,
                (true, false) => &mut states.connected,
            } += 1;
        }
        Some(states)
    }

    /// Returns the present state.
    pub(crate) fn figures(&self) -> Figures {
        let mut worst: Vec<_> = Self::standings(&self.known()).into_values().collect();
        let count = worst.len();
        worst.sort_by(Standing::by_badness);
        worst.truncate(MAX_REPORTED);
        Figures { count, worst }
    }

    fn known(&self) -> Vec<Weak<Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the state of each endpoint. One of several channels counts once.
    fn standings(channels: &[Weak<Shared>]) -> BTreeMap<SocketAddr, Standing> {
        let mut endpoints = BTreeMap::<SocketAddr, Standing>::new();
        for channel in channels.iter().filter_map(Weak::upgrade) {
            for endpoint in channel.set().endpoints() {
                let more = Standing::of(endpoint);
                endpoints.entry(more.address).and_modify(|known| known.join(&more)).or_insert(more);
            }
        }
        endpoints
    }
}

impl Standing {
    fn of(endpoint: &Endpoint) -> Self {
        let state = endpoint.state();
        Self {
            address: endpoint.place.address,
            zone: endpoint.place.zone.clone(),
            is_connected: endpoint.is_connected(),
            is_ejected: state.is_ejected(),
            in_flight: state.in_flight(),
            recent: state.recent(),
        }
    }

    /// Adds the state of the same endpoint in another channel.
    fn join(&mut self, other: &Self) {
        self.is_connected &= other.is_connected;
        self.is_ejected |= other.is_ejected;
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.recent = [self.recent, other.recent].into_iter().sum();
    }

    /// Orders the worse endpoint first.
    fn by_badness(&self, other: &Self) -> Ordering {
        let states = |standing: &Self| (standing.is_connected, !standing.is_ejected);
        let by_share = || self.recent.by_share(other.recent).reverse();
        states(self).cmp(&states(other)).then_with(by_share).then_with(|| self.address.cmp(&other.address))
    }
}
