//! The state of callees' endpoints, as last reported by each connected process.
//!
//! Memory: [`MAX_REPORTED`] endpoints per callee and process, within the bytes for the totals of all
//! processes. They are dropped when the process disconnects.

pub(crate) mod merged;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use damper_core::endpoints::{
    Counts, MAX_ENDPOINTS, MAX_REPORTED, MAX_REPORTED_CHANNELS, MAX_ZONE_BYTES, REMEMBERED,
};
use damper_core::{Faults, MAX_ROUTES, key};
use damper_proto::v1;

use crate::stats::Stats;

/// The endpoints that one process knows, by callee.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    callees: HashMap<Arc<str>, Arc<Callee>>,
    bytes: usize,
}

/// The endpoints of one callee, as reported by one process.
#[derive(Debug)]
struct Callee {
    /// The number of known endpoints.
    count: u32,
    /// The listed endpoints.
    worst: Vec<Endpoint>,
}

/// One endpoint, as reported by one process.
#[derive(Debug)]
struct Endpoint {
    address: SocketAddr,
    zone: Box<str>,
    is_connected: bool,
    is_ejected: bool,
    in_flight: u32,
    recent: Counts,
}

impl Endpoints {
    /// The memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the report about one callee; false if it is malformed or exceeds the limit. `room` is the memory
    /// left for all processes.
    pub(super) fn take(&mut self, part: &v1::EndpointsReport, room: &mut usize) -> bool {
        let name = part.callee_service.as_str();
        if part.count == 0 {
            self.remove(name, room);
            return true;
        }
        let Some(callee) = Callee::read(part) else { return false };
        let before = self.callees.get(name).map_or(0, |known| known.bytes(name));
        if before == 0 && (self.callees.len() >= MAX_ROUTES || !is_name(name)) {
            return false;
        }
        let bytes = callee.bytes(name);
        let Some(left) = (*room + before).checked_sub(bytes) else { return false };
        *room = left;
        self.bytes = self.bytes + bytes - before;
        self.callees.insert(name.into(), Arc::new(callee));
        true
    }

    fn remove(&mut self, name: &str, room: &mut usize) {
        if let Some(callee) = self.callees.remove(name) {
            let bytes = callee.bytes(name);
            self.bytes -= bytes;
            *room += bytes;
        }
    }

    /// Drops all endpoints; returns their memory in bytes.
    pub(super) fn forget(&mut self) -> usize {
        std::mem::take(self).bytes
    }

    /// Returns them as reports.
    pub(super) fn to_report(&self) -> Vec<v1::EndpointsReport> {
        self.callees.iter().map(|(name, callee)| callee.to_report(name)).collect()
    }
}

impl Callee {
    fn read(part: &v1::EndpointsReport) -> Option<Self> {
        let worst = &part.worst;
        let most = MAX_ENDPOINTS * MAX_REPORTED_CHANNELS;
        if worst.len() > MAX_REPORTED || !(worst.len()..=most).contains(&(part.count as usize)) {
            return None;
        }
        let worst = worst.iter().map(Endpoint::read).collect::<Option<Vec<_>>>()?;
        Some(Self { count: part.count, worst })
    }

    fn bytes(&self, name: &str) -> usize {
        let entry = size_of::<(Arc<str>, Arc<Self>)>() + size_of::<Self>() + name.len();
        entry + self.worst.iter().map(|endpoint| size_of::<Endpoint>() + endpoint.zone.len()).sum::<usize>()
    }

    fn to_report(&self, name: &str) -> v1::EndpointsReport {
        v1::EndpointsReport {
            callee_service: name.to_owned(),
            count: self.count,
            worst: self.worst.iter().map(Endpoint::to_report).collect(),
        }
    }
}

impl Endpoint {
    /// `None` if a field is out of bounds.
    fn read(part: &v1::EndpointReport) -> Option<Self> {
        let v1::EndpointReport { address, zone, connected, ejected, in_flight, recent, recent_failures } =
            part;
        let most = REMEMBERED * u32::try_from(MAX_REPORTED_CHANNELS).ok()?;
        let is_sound = zone.len() <= MAX_ZONE_BYTES
            && !zone.chars().any(char::is_control)
            && *recent <= most
            && recent_failures <= recent;
        Some(Self {
            address: address.parse().ok().filter(|_| is_sound)?,
            zone: zone.as_str().into(),
            is_connected: *connected,
            is_ejected: *ejected,
            in_flight: *in_flight,
            recent: Counts { all: *recent, failures: *recent_failures },
        })
    }

    fn to_report(&self) -> v1::EndpointReport {
        v1::EndpointReport {
            address: self.address.to_string(),
            zone: self.zone.to_string(),
            connected: self.is_connected,
            ejected: self.is_ejected,
            in_flight: self.in_flight,
            recent: self.recent.all,
            recent_failures: self.recent.failures,
        }
    }
}

impl Stats {
    /// Returns the endpoints of this callee, or of all callees by name if it is empty.
    pub(crate) fn endpoints(&self, callee: &str) -> Vec<v1::CalleeEndpoints> {
        // Shared references are merged, so that reports need not wait.
        let callees: Vec<(Arc<str>, Arc<Callee>)> = {
            let books = self.books();
            let connected = books.instances.values().filter(|instance| instance.is_connected());
            let known = connected.flat_map(|instance| &instance.endpoints().callees);
            let asked = known.filter(|(name, _)| callee.is_empty() || ***name == *callee);
            asked.map(|(name, callee)| (name.clone(), callee.clone())).collect()
        };
        merged::merge(&callees)
    }
}

fn is_name(name: &str) -> bool {
    let mut faults = Faults::none();
    key::check_name("", name, &mut faults);
    faults.is_empty()
}
