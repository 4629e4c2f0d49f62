//! The clients of a peer: sessions in the own register, and reports in the own statistics.
//!
//! All input is checked: malformed parts are dropped and counted, and the number of clients has a limit. When
//! a stream begins, the known clients stay until the new stream has sent all of its own, so that a lost
//! connection removes no client.

use std::collections::HashMap;
use std::sync::Arc;

use damper_proto::convert::length;
use damper_proto::v1;

use crate::clients::group::ClientGroup;
use crate::cluster::Cluster;
use crate::push::sessions::SessionGuard;

/// The most clients of one peer.
const MAX_CLIENTS: usize = 100_000;

/// The mirrored clients of a peer.
pub(crate) struct Mirror {
    cluster: Arc<Cluster>,
    replica: Arc<str>,
    /// The epoch of the store when the current stream was opened.
    epoch: Arc<str>,
    /// By number; false: not sent by the current stream yet.
    clients: HashMap<u64, (SessionGuard, bool)>,
}

impl Mirror {
    pub(crate) fn of(cluster: Arc<Cluster>, replica: Arc<str>) -> Self {
        let epoch = cluster.fleet.table().epoch().clone();
        Self { cluster, replica, epoch, clients: HashMap::new() }
    }

    /// Begins a new stream, which the replica opened under this epoch of the store.
    pub(crate) fn begin(&mut self, epoch: Arc<str>) {
        self.epoch = epoch;
        self.clients.values_mut().for_each(|(_, is_current)| *is_current = false);
    }

    /// Forgets all clients.
    pub(crate) fn clear(&mut self) {
        self.clients.clear();
    }

    /// Applies a message; returns the number of dropped parts.
    pub(crate) fn take(&mut self, message: v1::FollowResponse) -> u64 {
        let is_news = !(message.clients.is_empty() && message.gone.is_empty());
        let mut left_out = 0;
        for client in message.clients {
            left_out += u64::from(!self.client(client));
        }
        for report in message.reports {
            left_out += self.report(report);
        }
        for number in message.gone {
            self.clients.remove(&number);
        }
        if message.complete {
            self.clients.retain(|_, (_, is_current)| *is_current);
        }
        if is_news {
            self.cluster.fleet.hub.changed();
        }
        left_out
    }

    /// False if the client is malformed or exceeds the limit.
    fn client(&mut self, message: v1::FollowedClient) -> bool {
        if let Some((admitted, is_current)) = self.clients.get_mut(&message.number) {
            admitted.session.follow(message, &self.epoch);
            *is_current = true;
            return true;
        }
        let class = message.hello.as_ref().and_then(|hello| ClientGroup::read(hello).ok());
        let Some(class) = class.filter(|_| self.clients.len() < MAX_CLIENTS) else { return false };
        let number = message.number;
        let admitted =
            SessionGuard::mirrored(&self.cluster.fleet, message, class, self.replica.clone(), &self.epoch);
        self.clients.insert(number, (admitted, true));
        true
    }

    fn report(&mut self, message: v1::FollowedReport) -> u64 {
        let Some((admitted, _)) = self.clients.get(&message.number) else { return 1 };
        let Some(report) = message.report else { return 1 };
        let age = message.age.and_then(length).unwrap_or_default();
        admitted.session.reported(&report);
        self.cluster.fleet.stats.report_of(&admitted.session, &report, age)
    }
}
