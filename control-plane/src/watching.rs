//! How often clients report, by who watches what.
//!
//! While anybody watches everything all clients report often; while somebody watches one route only those do that
//! can report it, the processes of its caller. The pace is told to every stream, which picks what concerns its own
//! client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::class::Class;
use crate::shared::Shared;

/// How often clients report: at their leisure, or more often while somebody watches.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    usual: Duration,
    watched: Duration,
    /// How many watch everything, and since when anybody does.
    all: usize,
    all_since: Instant,
    /// How many watch a route of a caller, by its service and cluster.
    callers: HashMap<(Arc<str>, Arc<str>), usize>,
}

/// Somebody watches the figures: all of them, or those of one route.
pub(crate) struct Watching {
    shared: Arc<Shared>,
    caller: Option<(Arc<str>, Arc<str>)>,
}

impl Pace {
    /// Nobody watches.
    pub(crate) fn new(usual: Duration, watched: Duration) -> Self {
        Self {
            usual,
            watched: watched.min(usual),
            all: 0,
            all_since: Instant::now(),
            callers: HashMap::new(),
        }
    }

    /// How often clients report of whom nothing more is known.
    pub(crate) fn of_all(&self) -> Duration {
        if self.all > 0 { self.watched } else { self.usual }
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
    pub(crate) fn of(&self, class: &Class) -> Duration {
        let is_theirs = |(service, cluster): &(Arc<str>, Arc<str>)| {
            **service == *class.service && **cluster == *class.cluster
        };
        if self.callers.keys().any(is_theirs) { self.watched } else { self.of_all() }
    }

    #[cfg(test)]
    pub(crate) fn begin_watching_everything(&mut self) {
        *self.watchers(None) += 1;
    }

    fn watchers(&mut self, caller: Option<&(Arc<str>, Arc<str>)>) -> &mut usize {
        match caller {
            None => {
                if self.all == 0 {
                    self.all_since = Instant::now();
                }
                &mut self.all
            }
            Some(caller) => self.callers.entry(caller.clone()).or_default(),
        }
    }
}

impl Watching {
    /// All figures.
    pub(crate) fn everything(shared: &Arc<Shared>) -> Self {
        Self::new(shared, None)
    }

    /// Those of a route of this caller: its service and its cluster.
    pub(crate) fn caller(shared: &Arc<Shared>, service: &Arc<str>, cluster: &Arc<str>) -> Self {
        Self::new(shared, Some((service.clone(), cluster.clone())))
    }

    fn new(shared: &Arc<Shared>, caller: Option<(Arc<str>, Arc<str>)>) -> Self {
        shared.hub.change_pace(|pace| *pace.watchers(caller.as_ref()) += 1);
        Self { shared: shared.clone(), caller }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.hub.change_pace(|pace| {
            let watchers = pace.watchers(self.caller.as_ref());
            *watchers = watchers.saturating_sub(1);
            pace.callers.retain(|_, watchers| *watchers > 0);
        });
    }
}
