//! The clients of another replica, as it tells of them: sessions in this one's hub, and reports in its statistics.
//!
//! Nothing of what it says is believed to be well formed: what can not be is left out and counted, and the number of its
//! clients is bounded. When a stream begins, all that was known stays until the new stream has told everything, so that
//! nobody is taken for gone because a connection was.

use std::collections::HashMap;
use std::sync::Arc;

use damper_proto::convert::length;
use damper_proto::v1;

use crate::clients::group::ClientGroup;
use crate::cluster::Cluster;
use crate::push::sessions::SessionGuard;

/// The most clients of one replica.
const MAX_CLIENTS: usize = 100_000;

/// What another replica has told.
pub(crate) struct Mirror {
    cluster: Arc<Cluster>,
    replica: Arc<str>,
    /// The store's identity that the present stream was opened under: what it tells is of that one.
    epoch: Arc<str>,
    /// By number; false: the present stream has not told of it yet.
    clients: HashMap<u64, (SessionGuard, bool)>,
}

impl Mirror {
    pub(crate) fn of(cluster: Arc<Cluster>, replica: Arc<str>) -> Self {
        let epoch = cluster.fleet.table().epoch().clone();
        Self { cluster, replica, epoch, clients: HashMap::new() }
    }

    /// A new stream begins, of this epoch.
    pub(crate) fn begin(&mut self, epoch: Arc<str>) {
        self.epoch = epoch;
        self.clients.values_mut().for_each(|(_, is_told)| *is_told = false);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.clients.clear();
    }

    /// Takes what is told; answers how much of it was left out.
    pub(crate) fn take(&mut self, told: v1::FollowResponse) -> u64 {
        let is_news = !(told.clients.is_empty() && told.gone.is_empty());
        let mut left_out = 0;
        for client in told.clients {
            left_out += u64::from(!self.client(client));
        }
        for report in told.reports {
            left_out += self.report(report);
        }
        for number in told.gone {
            self.clients.remove(&number);
        }
        if told.complete {
            self.clients.retain(|_, (_, is_told)| *is_told);
        }
        if is_news {
            self.cluster.fleet.hub.changed();
        }
        left_out
    }

    /// False where it can not be a client, or there is no room for it.
    fn client(&mut self, told: v1::FollowedClient) -> bool {
        if let Some((admitted, is_told)) = self.clients.get_mut(&told.number) {
            admitted.session.follow(told, &self.epoch);
            *is_told = true;
            return true;
        }
        let class = told.hello.as_ref().and_then(|hello| ClientGroup::read(hello).ok());
        let Some(class) = class.filter(|_| self.clients.len() < MAX_CLIENTS) else { return false };
        let number = told.number;
        let admitted =
            SessionGuard::mirrored(&self.cluster.fleet, told, class, self.replica.clone(), &self.epoch);
        self.clients.insert(number, (admitted, true));
        true
    }

    fn report(&mut self, told: v1::FollowedReport) -> u64 {
        let Some((admitted, _)) = self.clients.get(&told.number) else { return 1 };
        let Some(report) = told.report else { return 1 };
        let age = told.age.and_then(length).unwrap_or_default();
        admitted.session.reported(&report);
        self.cluster.fleet.stats.report_of(&admitted.session, &report, age)
    }
}
