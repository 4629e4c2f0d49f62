//! How often clients report, by who watches what.
//!
//! While anybody watches everything all clients report often; while somebody watches one route only those do that
//! can report it, the processes of its caller. The pace is told to every stream, which picks what concerns its own
//! client. It goes by who watches here and by what other replicas say is watched there; they are told only of here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use damper_proto::v1;
use tokio::time::Instant;

use crate::clients::group::ClientGroup;

/// Of so many callers it is known at most that they are watched elsewhere; where there are more, everybody is.
pub(crate) const MAX_CALLERS: usize = 1000;

/// A service and its cluster.
pub(crate) type CallerService = (Arc<str>, Arc<str>);

/// How often clients report: at their leisure, or more often while somebody watches.
#[derive(Clone, Debug)]
pub(crate) struct ReportSchedule {
    usual: Duration,
    watched: Duration,
    /// Since when anybody watches everything, wherever.
    all_since: Instant,
    /// How many watch everything here.
    pub(crate) all: usize,
    /// How many watch a route of a caller here.
    pub(crate) callers: HashMap<CallerService, usize>,
    /// What is watched at other replicas.
    pub(crate) elsewhere: HashMap<Arc<str>, Elsewhere>,
}

/// What is watched at another replica.
#[derive(Clone, Debug)]
pub(crate) struct Elsewhere {
    pub(crate) all: bool,
    pub(crate) callers: HashSet<CallerService>,
}

impl ReportSchedule {
    /// Nobody watches.
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

    /// How often clients report of whom nothing more is known.
    pub(crate) fn of_all(&self) -> Duration {
        if self.is_all_watched() { self.watched } else { self.usual }
    }

    /// How often all of them have been reporting at least: whoever is told to report more often still lets the time
    /// run out in which the next report was due.
    pub(crate) fn kept(&self) -> Duration {
        let is_kept = self.all_since.elapsed() >= self.usual.mul_f64(1.25) + Duration::from_secs(1);
        if is_kept { self.of_all() } else { self.usual }
    }

    /// How often they report while they are watched.
    pub(crate) fn watched(&self) -> Duration {
        self.watched
    }

    /// How often the clients of a class report.
    pub(crate) fn of(&self, class: &ClientGroup) -> Duration {
        let is_theirs =
            |(service, cluster): &CallerService| **service == *class.service && **cluster == *class.cluster;
        let elsewhere = self.elsewhere.values().flat_map(|watched| &watched.callers);
        let is_watched = self.callers.keys().chain(elsewhere).any(is_theirs);
        if is_watched { self.watched } else { self.of_all() }
    }

    /// What is watched here, as other replicas are told.
    pub(crate) fn told(&self) -> v1::Watched {
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

    /// Changes who watches, and notes when the first began to watch everything.
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
