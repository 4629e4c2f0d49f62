//! The endpoints of a callee over all processes, and their problems.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use damper_core::endpoints::Counts;
use damper_proto::v1;

use crate::state::text::percent;
use crate::stats::endpoints::{Callee, Endpoint};

/// The most endpoints listed per callee.
const MAX_LISTED: usize = 100;
/// The most addresses in a sentence.
const MAX_NAMED: usize = 3;

/// The merged reports about one callee.
#[derive(Default)]
struct Merged<'a> {
    clients: u32,
    /// Of those: clients that know more endpoints than they list.
    silent: u32,
    count: u32,
    endpoints: BTreeMap<SocketAddr, Sum<'a>>,
}

/// The merged reports about one endpoint.
#[derive(Default)]
struct Sum<'a> {
    zone: &'a str,
    named_by: u32,
    /// Of those: clients that know more endpoints than they list.
    named_by_silent: u32,
    ejected: u32,
    not_connected: u32,
    recent: Counts,
    in_flight: u32,
}

/// Reports by callee, sorted by name.
pub(super) fn merge(reports: &[(Arc<str>, Arc<Callee>)]) -> Vec<v1::CalleeEndpoints> {
    let mut callees = BTreeMap::<&str, Merged<'_>>::new();
    for (name, callee) in reports {
        callees.entry(name).or_default().add(callee);
    }
    callees.into_iter().map(|(name, merged)| merged.into_wire(name)).collect()
}

impl<'a> Merged<'a> {
    fn add(&mut self, callee: &'a Callee) {
        let is_silent = callee.count as usize > callee.worst.len();
        self.clients += 1;
        self.silent += u32::from(is_silent);
        self.count = self.count.max(callee.count);
        for endpoint in &callee.worst {
            self.endpoints.entry(endpoint.address).or_default().add(endpoint, is_silent);
        }
    }

    fn into_wire(self, name: &str) -> v1::CalleeEndpoints {
        let named = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let (clients, count) = (self.clients, self.count.max(named));
        let mut endpoints = self.rated();
        let problem = problem(name, count, &endpoints);
        endpoints.sort_by_key(|endpoint| {
            let v1::Endpoint { failing, not_connected, ejected, recent, recent_failures, .. } = endpoint;
            let share_in_millionths = u64::from(*recent_failures) * 1_000_000 / u64::from(*recent).max(1);
            // By address if all else is equal.
            Reverse((*failing, *not_connected, *ejected, share_in_millionths))
        });
        endpoints.truncate(MAX_LISTED);
        v1::CalleeEndpoints { callee_service: name.to_owned(), clients, count, endpoints, problem }
    }

    /// Returns all endpoints, by address.
    fn rated(&self) -> Vec<v1::Endpoint> {
        let all: Counts =
            self.endpoints.values().filter(|sum| !self.is_ejected(sum)).map(|sum| sum.recent).sum();
        let any_connected = self.endpoints.values().any(|sum| !self.is_away(sum));
        let rated = self.endpoints.iter().map(|(address, sum)| {
            let is_ejected = self.is_ejected(sum);
            let own = if is_ejected { Counts::default() } else { sum.recent };
            let others = Counts { all: all.all - own.all, failures: all.failures - own.failures };
            let is_away = any_connected && self.is_away(sum);
            v1::Endpoint {
                address: address.to_string(),
                zone: sum.zone.to_owned(),
                clients: self.clients_of(sum),
                ejected: sum.ejected,
                not_connected: sum.not_connected,
                recent: sum.recent.all,
                recent_failures: sum.recent.failures,
                in_flight: sum.in_flight,
                failing: is_away || is_ejected || sum.recent.is_far_above(others),
            }
        });
        rated.collect()
    }

    /// The clients that list it, and those that may know it without listing it.
    fn clients_of(&self, sum: &Sum<'_>) -> u32 {
        sum.named_by + self.silent - sum.named_by_silent
    }

    /// True if at least half of the clients that know it have ejected it.
    fn is_ejected(&self, sum: &Sum<'_>) -> bool {
        sum.ejected > 0 && sum.ejected * 2 >= self.clients_of(sum)
    }

    /// True if no client is connected to it.
    fn is_away(&self, sum: &Sum<'_>) -> bool {
        sum.not_connected == self.clients_of(sum)
    }
}

impl<'a> Sum<'a> {
    fn add(&mut self, endpoint: &'a Endpoint, is_silent: bool) {
        if self.zone.is_empty() {
            self.zone = &endpoint.zone;
        }
        self.named_by += 1;
        self.named_by_silent += u32::from(is_silent);
        self.ejected += u32::from(endpoint.is_ejected);
        self.not_connected += u32::from(!endpoint.is_connected);
        self.recent = [self.recent, endpoint.recent].into_iter().sum();
        self.in_flight = self.in_flight.saturating_add(endpoint.in_flight);
    }
}

/// Describes the problems as text; empty if there are none.
fn problem(callee: &str, count: u32, endpoints: &[v1::Endpoint]) -> String {
    let is_away = |endpoint: &&v1::Endpoint| endpoint.not_connected == endpoint.clients;
    let (away, failing): (Vec<_>, Vec<_>) =
        endpoints.iter().filter(|endpoint| endpoint.failing).partition(is_away);
    let mut words = Vec::new();
    if !failing.is_empty() {
        let sum = |part: fn(&v1::Endpoint) -> u32| failing.iter().map(|it| f64::from(part(it))).sum::<f64>();
        let share = percent(sum(|it| it.recent_failures) / sum(|it| it.recent).max(1.0));
        let (fails, its) = if failing.len() == 1 { ("fails", "its") } else { ("fail", "their") };
        let addresses = addresses(&failing);
        words.push(format!("{fails} {share} of {its} last requests: {addresses}{}", ejected(&failing)));
    }
    if !away.is_empty() {
        let are = if away.len() == 1 { "is" } else { "are" };
        words.push(format!("{are} not connected from any client: {}", addresses(&away)));
    }
    let counts = [failing.len(), away.len()].into_iter().filter(|bad| *bad > 0);
    let endpoints = if count == 1 { "endpoint" } else { "endpoints" };
    let problems =
        counts.zip(words).map(|(bad, words)| format!("{bad} of {count} {endpoints} of {callee} {words}"));
    problems.collect::<Vec<_>>().join(". ")
}

fn ejected(failing: &[&v1::Endpoint]) -> String {
    let most = failing.iter().max_by_key(|endpoint| endpoint.ejected).filter(|most| most.ejected > 0);
    let clients = |of: u32| if of == 1 { "client" } else { "clients" };
    most.map_or_else(String::new, |most| {
        format!("; ejected by {} of {} {}", most.ejected, most.clients, clients(most.clients))
    })
}

fn addresses(endpoints: &[&v1::Endpoint]) -> String {
    let named = endpoints.iter().take(MAX_NAMED).map(|endpoint| match endpoint.zone.as_str() {
        "" => endpoint.address.clone(),
        zone => format!("{} (zone {zone})", endpoint.address),
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match endpoints.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
