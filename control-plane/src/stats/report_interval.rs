//! The report interval of clients, by the statistics that are watched.
//!
//! While all statistics are watched, all clients report often. While one route is watched, only the processes
//! of its caller do. The interval is sent to every stream, which selects the value for its client. It depends
//! on the watchers of this replica and of its peers; only the own ones are sent to peers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use damper_proto::v1;
use tokio::time::Instant;

use crate::clients::group::ClientGroup;

/// The most watched callers per peer; beyond it all clients report often.
pub(crate) const MAX_CALLERS: usize = 1000;

/// A service and its cluster.
pub(crate) type CallerService = (Arc<str>, Arc<str>);

/// The report intervals: normal, and while watched.
#[derive(Clone, Debug)]
pub(crate) struct ReportSchedule {
    usual: Duration,
    watched: Duration,
    /// Since when all statistics are watched, on any replica.
    all_since: Instant,
    /// The number of watchers of all statistics here.
    pub(crate) all: usize,
    /// The number of watchers of a route here, by caller.
    pub(crate) callers: HashMap<CallerService, usize>,
    /// The watched statistics of peers.
    pub(crate) elsewhere: HashMap<Arc<str>, Elsewhere>,
}

/// The watched statistics of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Elsewhere {
    pub(crate) all: bool,
    pub(crate) callers: HashSet<CallerService>,
}

impl ReportSchedule {
    /// Starts without watchers.
    pub(crate) fn new(usual: Duration, watched: Duration) -> Self {
        Self {
            usual,
            watched: watched.min(usual),
            all_since: Instant::now(),
            all: 0,
            callers: HashMap::new(),
            elsewhere: HashMap::new(),
        }
    }

    /// The interval of clients with an unknown caller.
    pub(crate) fn of_all(&self) -> Duration {
        if self.is_all_watched() { self.watched } else { self.usual }
    }

    /// Since when all clients have reported at this interval. A client that gets a shorter interval still
    /// waits for its next report at the old one.
    pub(crate) fn kept(&self) -> Duration {
        let is_kept = self.all_since.elapsed() >= self.usual.mul_f64(1.25) + Duration::from_secs(1);
        if is_kept { self.of_all() } else { self.usual }
    }

    /// The interval while watched.
    pub(crate) fn watched(&self) -> Duration {
        self.watched
    }

    /// The interval of the clients of a group.
    pub(crate) fn of(&self, class: &ClientGroup) -> Duration {
        let is_theirs =
            |(service, cluster): &CallerService| **service == *class.service && **cluster == *class.cluster;
        let elsewhere = self.elsewhere.values().flat_map(|watched| &watched.callers);
        let is_watched = self.callers.keys().chain(elsewhere).any(is_theirs);
        if is_watched { self.watched } else { self.of_all() }
    }

    /// The own watched statistics, as sent to peers.
    pub(crate) fn to_wire(&self) -> v1::Watched {
        let caller = |(service, cluster): &CallerService| v1::WatchedCaller {
            service: service.to_string(),
            cluster: cluster.to_string(),
        };
        let mut callers: Vec<_> = self.callers.keys().map(caller).collect();
        callers.sort_by(|a, b| (&a.service, &a.cluster).cmp(&(&b.service, &b.cluster)));
        v1::Watched { all: self.all > 0, callers }
    }

    #[cfg(test)]
    pub(crate) fn begin_watching_everything(&mut self) {
        self.change(|pace| *pace.watchers(None) += 1);
    }

    fn is_all_watched(&self) -> bool {
        self.all > 0 || self.elsewhere.values().any(|watched| watched.all)
    }

    /// Changes the watchers, and records when the first began to watch all statistics.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let was_watched = self.is_all_watched();
        change(self);
        if !was_watched && self.is_all_watched() {
            self.all_since = Instant::now();
        }
    }

    pub(crate) fn watchers(&mut self, caller: Option<&CallerService>) -> &mut usize {
        match caller {
            None => &mut self.all,
            Some(caller) => self.callers.entry(caller.clone()).or_default(),
        }
    }
}
