//! Discovers the endpoints and runs one task for each.
//!
//! Looks names up every [`EVERY`], and sooner after a failed connection. If a lookup fails or returns no
//! address, the last known addresses stay.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use damper_core::endpoints::{Endpoint as _, MAX_ENDPOINTS};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::connect::Connector;
use super::connection;
use super::endpoint::Endpoint;
use super::set::{Set, Shared};
use super::targets::{Changes, Checked, Name, Place};
use crate::background::names::Names;

/// Interval between lookups.
const EVERY: Duration = Duration::from_secs(10);
/// Shortest interval, after a failed connection.
const SOONEST: Duration = Duration::from_secs(1);
/// Limit for one lookup.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(5);
/// Concurrent lookups.
const AT_ONCE: usize = 64;

/// Runs until aborted.
pub(super) async fn run(checked: Checked, ends: Ends) {
    let shared = Arc::clone(&ends.0);
    let (lost, mut losses) = mpsc::channel(1);
    let connector = Connector::new(&checked.target, checked.access, checked.stream_window);
    let mut crew = Crew {
        connector,
        shared,
        zone: checked.zone,
        lost,
        tasks: JoinSet::new(),
        kept: Vec::new(),
        never: checked.never,
        is_noted: false,
    };
    let (mut names, mut changes, mut looks) = (checked.names, checked.changes, Looks::default());
    loop {
        let looked = Instant::now();
        // Without names, the first change has not arrived yet.
        if !names.is_empty() {
            let places = crew.without_own(looks.all(&names).await);
            crew.note_lone(&names, &places);
            crew.keep(places);
        }
        let mut due = looked + EVERY;
        loop {
            tokio::select! {
                () = sleep_until(due) => break,
                Some(()) = losses.recv(), if due > looked + SOONEST => due = looked + SOONEST,
                changed = next(&mut changes) => {
                    match changed {
                        Some(changed) => names = changed,
                        None => crew.keep(Vec::new()),
                    }
                    break;
                }
            }
        }
    }
}

/// Returns the names after all changes that are ready; `None` if discovery failed or ended.
async fn next(changes: &mut Option<Changes>) -> Option<Vec<Name>> {
    let Some(saying) = changes else { return std::future::pending().await };
    let mut names = None;
    let (is_over, names) = poll_fn(|cx| {
        loop {
            match saying.as_mut().poll(cx) {
                Poll::Ready(Some(Ok(changed))) => names = Some(changed),
                Poll::Pending if names.is_none() => return Poll::Pending,
                Poll::Pending => return Poll::Ready((false, names.take())),
                Poll::Ready(Some(Err(problem))) => {
                    tracing::warn!(target: "damper", "endpoints not discovered: {problem}");
                    return Poll::Ready((false, names.take()));
                }
                Poll::Ready(None) => return Poll::Ready((true, names.take())),
            }
        }
    })
    .await;
    if is_over {
        *changes = None;
    }
    names
}

/// Lookups by name.
#[derive(Default)]
struct Looks(HashMap<Name, Look>);

#[derive(Default)]
struct Look {
    asking: Names,
    /// Result of the last successful lookup.
    addresses: Vec<SocketAddr>,
}

impl Looks {
    /// Returns the addresses of these names.
    async fn all(&mut self, names: &[Name]) -> Vec<Place> {
        let wanted: HashSet<_> = names.iter().collect();
        self.0.retain(|name, _| wanted.contains(name));
        for name in names {
            self.0.entry(name.clone()).or_default();
        }
        let mut looking = FuturesUnordered::new();
        for (name, look) in &mut self.0 {
            looking.push(look.again(name));
            if looking.len() == AT_ONCE {
                looking.next().await;
            }
        }
        while looking.next().await.is_some() {}
        drop(looking);
        let place = |name: &Name, address: &SocketAddr| Place { address: *address, zone: name.zone.clone() };
        let of_name =
            |(name, look): (&Name, &Look)| look.addresses.iter().map(|at| place(name, at)).collect();
        self.0.iter().flat_map(|entry| -> Vec<_> { of_name(entry) }).collect()
    }
}

impl Look {
    async fn again(&mut self, name: &Name) {
        match self.asking.look_up(&name.host, name.port, LOOK_UP_WITHIN).await {
            Ok(addresses) if !addresses.is_empty() => self.addresses = addresses,
            Ok(_) => tracing::debug!(target: "damper", name = %name.host, "name has no address"),
            Err(problem) => tracing::debug!(target: "damper", "{problem}"),
        }
    }
}

/// Ends the channel when the discovery task ends, for whatever reason.
pub(super) struct Ends(pub(super) Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The endpoints' tasks; aborted when this is dropped.
struct Crew {
    connector: Connector,
    shared: Arc<Shared>,
    zone: Option<Arc<str>>,
    lost: mpsc::Sender<()>,
    tasks: JoinSet<()>,
    kept: Vec<(Arc<Endpoint>, AbortHandle)>,
    /// Address that is no endpoint.
    never: Option<SocketAddr>,
    /// True once the log has what is unusual in the addresses.
    is_noted: bool,
}

impl Crew {
    /// Leaves out the address of the listener whose calls go here: they would go in a circle.
    fn without_own(&mut self, mut places: Vec<Place>) -> Vec<Place> {
        let Some(listen) = self.never else { return places };
        let before = places.len();
        places.retain(|place| !leads_to(place.address, listen));
        if places.len() < before && !std::mem::replace(&mut self.is_noted, true) {
            let target = self.shared.target();
            tracing::warn!(target: "damper", %target, %listen, "the name leads back to its own listener");
        }
        places
    }

    /// Logs once that the callee's name has one address.
    fn note_lone(&mut self, names: &[Name], places: &[Place]) {
        let Some(address) = lone(names, places).filter(|_| !self.is_noted) else { return };
        self.is_noted = true;
        tracing::info!(
            target: "damper", target = %self.shared.target(), %address,
            "the name has one address; if it is a ClusterIP, all calls and their retries go to the same pod: \
             use the name of a headless Service"
        );
    }

    /// Replaces the set of endpoints. An empty list is ignored, unless no endpoints are known yet.
    fn keep(&mut self, mut places: Vec<Place>) {
        places.sort_unstable_by_key(|place| place.address);
        places.dedup_by_key(|place| place.address);
        if places.len() > MAX_ENDPOINTS {
            tracing::warn!(target: "damper", "{} endpoints; {MAX_ENDPOINTS} of them are used", places.len());
            places.truncate(MAX_ENDPOINTS);
        }
        let is_same = places.iter().eq(self.kept.iter().map(|(endpoint, _)| &endpoint.place));
        if is_same && !places.is_empty() || places.is_empty() && !self.kept.is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut self.kept);
        for place in places {
            let known = before.iter().position(|(endpoint, _)| endpoint.place == place);
            let kept = match known {
                Some(index) => before.swap_remove(index),
                None => self.begin(place, &before),
            };
            self.kept.push(kept);
        }
        let endpoints = self.kept.iter().map(|(endpoint, _)| Arc::clone(endpoint)).collect();
        self.shared.replace(Set::new(endpoints, self.zone.as_deref()));
        // Requests in flight are still answered.
        before.iter().for_each(|(_, task)| task.abort());
        while self.tasks.try_join_next().is_some() {}
    }

    fn begin(
        &mut self,
        place: Place,
        before: &[(Arc<Endpoint>, AbortHandle)],
    ) -> (Arc<Endpoint>, AbortHandle) {
        let others = before.iter().chain(&self.kept);
        let taken: Vec<_> = others.map(|(endpoint, _)| endpoint.slot()).collect();
        let slot = (0..).find(|slot| !taken.contains(slot)).unwrap_or_default();
        let endpoint = Arc::new(Endpoint::new(place, slot));
        let task = connection::run(
            self.connector.clone(),
            Arc::clone(&endpoint),
            Arc::clone(&self.shared),
            self.lost.clone(),
        );
        (endpoint, self.tasks.spawn(task))
    }
}

/// Returns true if a connection to an address arrives at a listener of this machine.
fn leads_to(address: SocketAddr, listen: SocketAddr) -> bool {
    let is_any = listen.ip().is_unspecified() && listen.port() == address.port();
    address == listen || is_any && address.ip().is_loopback()
}

/// Returns the address of a single name that has no other, unless it is on this machine or the name is an
/// address itself.
fn lone(names: &[Name], places: &[Place]) -> Option<SocketAddr> {
    let ([name], [place]) = (names, places) else { return None };
    let is_name = name.host.parse::<IpAddr>().is_err();
    (is_name && !place.address.ip().is_loopback()).then_some(place.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_leads_to_a_listener_on_all_addresses() {
        let leads = |address: &str, listen: &str| leads_to(address.parse().unwrap(), listen.parse().unwrap());
        assert!(leads("127.0.0.1:7", "127.0.0.1:7") && leads("127.0.0.1:7", "0.0.0.0:7"));
        assert!(!leads("127.0.0.2:7", "127.0.0.1:7") && !leads("127.0.0.1:8", "0.0.0.0:7"));
        assert!(!leads("10.0.0.1:7", "0.0.0.0:7"), "it may be another machine");
    }

    #[test]
    fn only_a_name_with_one_remote_address_is_noted() {
        let name = |host: &str| Name { host: host.to_owned(), port: 1, zone: None };
        let place = |ip: &str| Place { address: SocketAddr::new(ip.parse().unwrap(), 1), zone: None };
        let one = [place("10.0.0.1")];
        assert_eq!(lone(&[name("stock.shop.svc")], &one), Some(one[0].address));
        assert_eq!(lone(&[name("10.0.0.1")], &one), None);
        assert_eq!(lone(&[name("localhost")], &[place("127.0.0.1")]), None);
        assert_eq!(lone(&[name("stock.shop.svc")], &[place("10.0.0.1"), place("10.0.0.2")]), None);
        assert_eq!(lone(&[name("a.shop.svc"), name("b.shop.svc")], &one), None);
        assert_eq!(lone(&[name("stock.shop.svc")], &[]), None);
    }
}
