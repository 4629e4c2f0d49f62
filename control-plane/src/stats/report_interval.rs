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
use crate::state::shared::Shared;

/// Of so many callers it is known at most that they are watched elsewhere; where there are more, everybody is.
const MAX_CALLERS: usize = 1000;

/// A service and its cluster.
type CallerService = (Arc<str>, Arc<str>);

/// How often clients report: at their leisure, or more often while somebody watches.
#[derive(Clone, Debug)]
pub(crate) struct ReportSchedule {
    usual: Duration,
    watched: Duration,
    /// Since when anybody watches everything, wherever.
    all_since: Instant,
    /// How many watch everything here.
    all: usize,
    /// How many watch a route of a caller here.
    callers: HashMap<CallerService, usize>,
    /// What is watched at other replicas.
    elsewhere: HashMap<Arc<str>, Elsewhere>,
}

/// What is watched at another replica.
#[derive(Clone, Debug)]
struct Elsewhere {
    all: bool,
    callers: HashSet<CallerService>,
}

/// Somebody watches the figures: all of them, or those of one route.
pub(crate) struct WatchGuard {
    shared: Arc<Shared>,
    caller: Option<CallerService>,
}

/// Another replica says what is watched there.
pub(crate) struct WatchingElsewhere {
    shared: Arc<Shared>,
    following: Arc<str>,
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
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let was_watched = self.is_all_watched();
        change(self);
        if !was_watched && self.is_all_watched() {
            self.all_since = Instant::now();
        }
    }

    fn watchers(&mut self, caller: Option<&CallerService>) -> &mut usize {
        match caller {
            None => &mut self.all,
            Some(caller) => self.callers.entry(caller.clone()).or_default(),
        }
    }
}

impl WatchGuard {
    /// All figures.
    pub(crate) fn everything(shared: &Arc<Shared>) -> Self {
        Self::new(shared, None)
    }

    /// Those of a route of this caller: its service and its cluster.
    pub(crate) fn caller(shared: &Arc<Shared>, service: &Arc<str>, cluster: &Arc<str>) -> Self {
        Self::new(shared, Some((service.clone(), cluster.clone())))
    }

    fn new(shared: &Arc<Shared>, caller: Option<CallerService>) -> Self {
        shared.hub.change_pace(|pace| pace.change(|pace| *pace.watchers(caller.as_ref()) += 1));
        Self { shared: shared.clone(), caller }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.shared.hub.change_pace(|pace| {
            let watchers = pace.watchers(self.caller.as_ref());
            *watchers = watchers.saturating_sub(1);
            pace.callers.retain(|_, watchers| *watchers > 0);
        });
    }
}

impl WatchingElsewhere {
    /// Nothing is watched there yet; `following` tells it from all others.
    pub(crate) fn nothing(shared: &Arc<Shared>, following: Arc<str>) -> Self {
        Self { shared: shared.clone(), following }
    }

    /// Takes all of what is watched there now.
    pub(crate) fn is(&self, told: v1::Watched) {
        let all = told.all || told.callers.len() > MAX_CALLERS;
        let named = told.callers.into_iter().take(MAX_CALLERS);
        let callers = named.map(|caller| (caller.service.into(), caller.cluster.into())).collect();
        let watched = Elsewhere { all, callers };
        self.shared.hub.change_pace(|pace| {
            pace.change(|pace| drop(pace.elsewhere.insert(self.following.clone(), watched)));
        });
    }
}

impl Drop for WatchingElsewhere {
    fn drop(&mut self) {
        self.shared.hub.change_pace(|pace| drop(pace.elsewhere.remove(&self.following)));
    }
}
