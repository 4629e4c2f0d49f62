//! Delivery progress of rules over all clients at one moment.
//!
//! Clients are grouped by service, so a query for a rule visits only the groups that its caller part matches.
//! The result for all rules is computed once for all watchers ([`Deliveries`]), off the runtime, with at most
//! a fifth of a CPU.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Part, Pattern, Rule};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::clients::group::ClientGroup;
use crate::clients::session::ClientSession;
use crate::push::fleet_state::FleetState;
use crate::push::sessions::Sessions;
use crate::state::error::ApiError;
use crate::state::guards::GuardTable;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::stored::StoredRule;

/// The pause after a computation, as a multiple of its duration.
const PAUSE: u32 = 4;

/// The delivery of rules to all clients at one moment.
pub(crate) struct Delivery {
    /// By service.
    groups: BTreeMap<String, Vec<GroupAcks>>,
    /// The revisions acknowledged by the clients that refuse a rule, by rule.
    refusals: HashMap<Pattern, Vec<u64>>,
    guards: GuardTable,
}

struct GroupAcks {
    class: Arc<ClientGroup>,
    /// In ascending order.
    acknowledged: Vec<u64>,
}

/// The number of clients that a rule concerns, and of those that have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeliveryCounts {
    pub(crate) clients: u32,
    pub(crate) applied: u32,
    pub(crate) refused: u32,
    pub(crate) lacking: u32,
}

impl Delivery {
    /// Reads all sessions of the fleet.
    pub(crate) fn of(hub: &Sessions, view: &Snapshot) -> Self {
        Self::among(hub.all(), view)
    }

    /// Reads the sessions of this replica.
    pub(crate) fn here(hub: &Sessions, view: &Snapshot) -> Self {
        Self::among(hub.own(), view)
    }

    fn among(sessions: Vec<Arc<ClientSession>>, view: &Snapshot) -> Self {
        let mut groups: HashMap<Arc<ClientGroup>, Vec<u64>> = HashMap::new();
        let mut refusals: HashMap<Pattern, Vec<u64>> = HashMap::new();
        for session in sessions {
            let progress = session.progress();
            let same_store = progress.epoch == *view.epoch();
            let acknowledged = if same_store { progress.acknowledged_revision() } else { 0 };
            groups.entry(session.class.clone()).or_default().push(acknowledged);
            for (subject, _) in progress.refuses(view) {
                if let ResourceKey::Rule(pattern) = subject {
                    refusals.entry(pattern.clone()).or_default().push(acknowledged);
                }
            }
        }
        let group = |(class, mut acknowledged): (_, Vec<u64>)| {
            acknowledged.sort_unstable();
            GroupAcks { class, acknowledged }
        };
        let mut by_service: BTreeMap<String, Vec<GroupAcks>> = BTreeMap::new();
        for group in groups.into_iter().map(group) {
            by_service.entry(group.class.service.clone()).or_default().push(group);
        }
        Self { groups: by_service, refusals, guards: view.guards().clone() }
    }

    /// Returns the groups that a pattern concerns.
    fn concerned(&self, pattern: &Pattern) -> impl Iterator<Item = &GroupAcks> {
        use std::ops::Bound::{Included, Unbounded};
        let bounds = match &pattern.caller_service {
            Part::Any => (Unbounded, Unbounded),
            Part::Exact(service) => (Included(&**service), Included(&**service)),
        };
        let groups = self.groups.range::<str, _>(bounds).flat_map(|(_, groups)| groups);
        groups.filter(|group| group.class.matches(pattern))
    }

    fn all(&self) -> impl Iterator<Item = &GroupAcks> {
        self.groups.values().flatten()
    }

    /// Returns the progress of a rule; `rule` is `None` if this server cannot read it.
    pub(crate) fn delivered(&self, pattern: &Pattern, revision: u64, rule: Option<&Rule>) -> DeliveryCounts {
        let mut sum = DeliveryCounts::default();
        for group in self.concerned(pattern) {
            let size = count(group.acknowledged.len());
            sum.clients += size;
            if group.class.off_because(&self.guards, pattern, rule).is_some() {
                sum.lacking += size;
            } else {
                let behind = group.acknowledged.partition_point(|acknowledged| *acknowledged < revision);
                sum.applied += count(group.acknowledged.len() - behind);
            }
        }
        let refusals = self.refusals.get(pattern).map_or(&[][..], Vec::as_slice);
        sum.refused = count(refusals.len());
        let refused_late = refusals.iter().filter(|acknowledged| **acknowledged >= revision).count();
        sum.applied = sum.applied.saturating_sub(count(refused_late));
        sum
    }

    /// Returns the number of clients that a guard concerns, and of those without support for guards.
    pub(crate) fn guarded(&self, pattern: &Pattern) -> DeliveryCounts {
        let mut sum = DeliveryCounts::default();
        for group in self.concerned(pattern) {
            let size = count(group.acknowledged.len());
            sum.clients += size;
            sum.lacking += if group.class.knows_guards() { 0 } else { size };
        }
        sum
    }

    /// Returns the number of clients that kills concern, and of those without support for kills.
    pub(crate) fn killed(&self, patterns: &[Pattern]) -> DeliveryCounts {
        let mut sum = DeliveryCounts::default();
        let concerned = |group: &&GroupAcks| patterns.iter().any(|pattern| group.class.matches(pattern));
        for group in self.all().filter(concerned) {
            let size = count(group.acknowledged.len());
            sum.clients += size;
            sum.lacking += if group.class.knows_kills() { 0 } else { size };
        }
        sum
    }

    /// Returns the connected services and clusters.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &ClientGroup> {
        self.all().map(|group| &*group.class)
    }
}

/// The progress of each rule at one moment.
pub(crate) struct Deliveries(Mutex<Option<Made>>);

/// A rule and its progress.
pub(crate) struct Reached {
    pub(crate) pattern: Pattern,
    pub(crate) stored: Arc<StoredRule>,
    pub(crate) delivered: DeliveryCounts,
}

/// All rules in order, with their progress.
pub(crate) struct AllReached {
    pub(crate) table: Arc<Snapshot>,
    pub(crate) rules: Vec<Reached>,
}

struct Made {
    all: Arc<AllReached>,
    /// The change counter of the sessions at that time.
    moves: u64,
    at: Instant,
    took: Duration,
}

impl Default for Deliveries {
    fn default() -> Self {
        Self(Mutex::const_new(None))
    }
}

impl Deliveries {
    /// Returns the progress of all rules; a cached result if the computation is slow.
    pub(crate) async fn now(&self, fleet: &Arc<FleetState>) -> Result<Arc<AllReached>, ApiError> {
        let mut made = self.0.lock().await;
        let moves = *fleet.hub.moves().borrow();
        let table = fleet.table();
        if let Some(made) = &*made {
            let is_now = made.moves == moves && made.all.table.same_rules(&table);
            let same_store = *made.all.table.epoch() == *table.epoch();
            if is_now || (same_store && made.at.elapsed() < made.took * PAUSE) {
                return Ok(made.all.clone());
            }
        }
        let work = |fleet: &Arc<FleetState>| {
            let begun = Instant::now();
            let all = Arc::new(AllReached::of(&fleet.hub, table));
            Ok((all, begun.elapsed()))
        };
        let (all, took) = fleet.off_runtime_unqueued(work).await?;
        *made = Some(Made { all: all.clone(), moves, at: Instant::now(), took });
        Ok(all)
    }
}

impl AllReached {
    fn of(hub: &Sessions, table: Arc<Snapshot>) -> Self {
        let delivery = Delivery::of(hub, &table);
        let reached = |(pattern, stored): (&Pattern, &Arc<StoredRule>)| Reached {
            pattern: pattern.clone(),
            stored: stored.clone(),
            delivered: delivery.delivered(pattern, stored.wire.revision, stored.rule.as_deref()),
        };
        let rules = table.iter().map(reached).collect();
        Self { table, rules }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::server::tasks::{OpenedServer, start};
    use damper_store::sled::SledStore;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_watcher_waits_its_turn_however_much_waits_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SledStore::open(folder.path()).await.unwrap());
        let (parts, _tasks) = start(OpenedServer::for_test(store).await);
        let fleet = parts.cluster.fleet.clone();
        let (release, released) = mpsc::channel::<()>();
        let mut first = Box::pin(fleet.off_runtime(move |_| Ok(released.recv().is_ok())));
        assert!(futures_util::poll!(&mut first).is_pending());
        let mut waiting = Vec::new();
        loop {
            let mut next = Box::pin(fleet.off_runtime(|_| Ok(())));
            if futures_util::poll!(&mut next).is_ready() {
                break;
            }
            waiting.push(next);
        }
        let mut now = Box::pin(fleet.deliveries.now(&fleet));
        assert!(futures_util::poll!(&mut now).is_pending(), "it was refused");
        release.send(()).unwrap();
        assert!(first.await.unwrap());
        drop(waiting);
        assert!(timeout(PATIENCE, now).await.expect("it has its turn").is_ok());
    }
}
