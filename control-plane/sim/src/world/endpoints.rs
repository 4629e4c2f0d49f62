//! The channel that knows its endpoints: `balance: balanced`, by the rules of `damper_core::endpoints`.

use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Endpoint, EndpointState};

use super::World;
use super::client::Sent;
use crate::plan::Plan;
use crate::scenario::Balance;

/// An instance of a callee, as one process sees it over one route.
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

/// What is seen over a route to this hop; nothing where the channel does not look.
pub(super) fn seen(plan: &Plan<'_>, hop: usize) -> Vec<Seen> {
    let service = &plan.scenario.services[plan.hops[hop].service];
    let slots = if service.balance == Balance::Balanced { 0..service.instances } else { 0..0 };
    slots.map(|slot| Seen { state: EndpointState::default(), slot, is_connected: true }).collect()
}

impl World<'_> {
    /// The instance of the callee that an attempt goes to. Where none is connected it goes to the first, and fails there.
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

    /// An attempt is over.
    pub(super) fn endpoint_left(&mut self, route: usize, sent: &Sent, outcome: Outcome) {
        let now = self.now();
        let seen = &self.endpoints[route];
        if let Some(endpoint) = seen.get(sent.endpoint) {
            endpoint.state.end();
            endpoints::ended(seen, sent.endpoint, outcome, now);
        }
    }
}
