//! The queues and kills that the server gives to this crate, replaced as a whole.
//!
//! A queue of the store that is missing here holds: its jobs are neither delivered nor forgotten nor expired,
//! and none is accepted. So a deleted or rolled back policy loses no job.

use std::collections::BTreeMap;
use std::sync::Arc;

use damper_core::job::{Queue, Wall};
use damper_core::{Kill, RouteKey};

/// Queues and kills in force at one moment.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    queues: BTreeMap<String, Arc<Queue>>,
    kills: Vec<KillUntil>,
}

/// A kill and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillUntil {
    /// The kill.
    pub kill: Arc<Kill>,
    /// It no longer applies from then on.
    pub until: Wall,
}

/// What the kills leave of a route: the times until which they stop its deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops {
    /// No delivery before this.
    pub(crate) calls_until: Wall,
    /// No delivery of a job that was sent before, before this.
    pub(crate) repeats_until: Wall,
}

impl Queues {
    /// Returns queues by their names, and kills.
    #[must_use]
    pub fn new(queues: impl IntoIterator<Item = Arc<Queue>>, kills: Vec<KillUntil>) -> Self {
        let queues = queues.into_iter().map(|queue| (queue.name().to_owned(), queue)).collect();
        Self { queues, kills }
    }

    /// Returns a queue; `None` if it has no policy.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Queue>> {
        self.queues.get(name)
    }

    /// Returns all queues in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.values()
    }

    /// Returns what the kills stop on a route.
    pub(crate) fn stops(&self, route: &RouteKey) -> Stops {
        let mut stops = Stops::default();
        for KillUntil { kill, until } in &self.kills {
            if kill.pattern().matches(route) {
                stops.repeats_until = stops.repeats_until.max(*until);
                if kill.calls() {
                    stops.calls_until = stops.calls_until.max(*until);
                }
            }
        }
        stops
    }
}

#[cfg(test)]
mod tests {
    use damper_core::Pattern;

    use super::*;

    #[test]
    fn kill_of_calls_stops_repeats_too() {
        let kill = |calls, until| {
            let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
            let kill = Arc::new(Kill::new(pattern, calls, "down".to_owned(), 1).unwrap());
            KillUntil { kill, until: Wall(until) }
        };
        let route = |callee| RouteKey::new("shop", "eu", callee, "p.S/M").unwrap();
        let queues = Queues::new([], vec![kill(false, 10), kill(true, 5)]);
        let both = Stops { calls_until: Wall(5), repeats_until: Wall(10) };
        assert_eq!((queues.stops(&route("stock")), queues.stops(&route("mail"))), (both, Stops::default()));
    }
}
