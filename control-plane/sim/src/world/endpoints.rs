//! The balanced channel, `balance: balanced`, by the rules of `damper_core::endpoints`.

use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Endpoint, EndpointState};

use super::World;
use super::client::Sent;
use crate::plan::Plan;
use crate::scenario::Balance;

/// An instance of a callee, as known to one process over one route.
#[derive(Debug)]
pub(super) struct Seen {
    state: EndpointState,
    slot: u32,
    is_connected: bool,
}

impl Endpoint for Seen {
    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn slot(&self) -> u32 {
        self.slot
    }

    fn is_connected(&self) -> bool {
        self.is_connected
    }
}

/// Returns the endpoints of a route to this hop; empty without a balanced channel.
pub(super) fn seen(plan: &Plan<'_>, hop: usize) -> Vec<Seen> {
    let service = &plan.scenario.services[plan.hops[hop].service];
    let slots = if service.balance == Balance::Balanced { 0..service.instances } else { 0..0 };
    slots.map(|slot| Seen { state: EndpointState::default(), slot, is_connected: true }).collect()
}

impl World<'_> {
    /// Chooses the instance for an attempt. Without a connected one it is the first, and the attempt fails
    /// there.
    pub(super) fn choose_endpoint(
        &mut self,
        route: usize,
        first_instance: usize,
        tried: &mut endpoints::Tried,
    ) -> usize {
        let (now, random) = (self.now(), self.streams.balance.any());
        let seen = &mut self.endpoints[route];
        for (seen, instance) in seen.iter_mut().zip(&self.instances[first_instance..]) {
            seen.is_connected = instance.is_up;
        }
        let chosen = endpoints::choose(seen, 0, *tried, now, random).unwrap_or(0);
        tried.insert(seen[chosen].slot);
        seen[chosen].state.begin();
        chosen
    }

    /// Records the end of an attempt.
    pub(super) fn endpoint_left(&mut self, route: usize, sent: &Sent, outcome: Outcome) {
        let now = self.now();
        let seen = &self.endpoints[route];
        if let Some(endpoint) = seen.get(sent.endpoint) {
            endpoint.state.end();
            endpoints::ended(seen, sent.endpoint, outcome, now);
        }
    }
}
