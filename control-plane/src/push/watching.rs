//! Watch guards: while one lives, the clients that it concerns report more often.

use std::sync::Arc;

use damper_proto::v1;

use crate::push::fleet_state::FleetState;
use crate::stats::report_interval::{CallerService, Elsewhere, MAX_CALLERS};

/// A watcher of the statistics: of all, or of one route.
pub(crate) struct WatchGuard {
    fleet: Arc<FleetState>,
    caller: Option<CallerService>,
}

/// The watched statistics of a peer.
pub(crate) struct WatchingElsewhere {
    fleet: Arc<FleetState>,
    following: Arc<str>,
}

impl WatchGuard {
    /// Watches all statistics.
    pub(crate) fn everything(fleet: &Arc<FleetState>) -> Self {
        Self::new(fleet, None)
    }

    /// Watches a route of this caller: its service and its cluster.
    pub(crate) fn caller(fleet: &Arc<FleetState>, service: &Arc<str>, cluster: &Arc<str>) -> Self {
        Self::new(fleet, Some((service.clone(), cluster.clone())))
    }

    fn new(fleet: &Arc<FleetState>, caller: Option<CallerService>) -> Self {
        fleet.hub.change_pace(|pace| pace.change(|pace| *pace.watchers(caller.as_ref()) += 1));
        Self { fleet: fleet.clone(), caller }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.fleet.hub.change_pace(|pace| {
            let watchers = pace.watchers(self.caller.as_ref());
            *watchers = watchers.saturating_sub(1);
            pace.callers.retain(|_, watchers| *watchers > 0);
        });
    }
}

impl WatchingElsewhere {
    /// Starts without watched statistics; `following` identifies the peer.
    pub(crate) fn nothing(fleet: &Arc<FleetState>, following: Arc<str>) -> Self {
        Self { fleet: fleet.clone(), following }
    }

    /// Replaces the set of watched statistics.
    pub(crate) fn is(&self, watched: v1::Watched) {
        let all = watched.all || watched.callers.len() > MAX_CALLERS;
        let named = watched.callers.into_iter().take(MAX_CALLERS);
        let callers = named.map(|caller| (caller.service.into(), caller.cluster.into())).collect();
        let watched = Elsewhere { all, callers };
        self.fleet.hub.change_pace(|pace| {
            pace.change(|pace| drop(pace.elsewhere.insert(self.following.clone(), watched)));
        });
    }
}

impl Drop for WatchingElsewhere {
    fn drop(&mut self) {
        self.fleet.hub.change_pace(|pace| drop(pace.elsewhere.remove(&self.following)));
    }
}
