//! Counts since the server started, and the view of a queue for operators.
//!
//! The ledger of the server is: jobs at the start + submitted = jobs in the store + deleted. Both sides are
//! equal once the store was read after the last change.

use damper_core::RouteKey;
use damper_core::job::{Queue, Wall};

use crate::state::QueueState;
use crate::state::State;
use crate::state::lane::{Counts, Held};
use crate::state::plan::deliverable;
use crate::state::totals::Totals;

/// A queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Name.
    pub queue: String,
    /// False: the jobs wait for a policy.
    pub has_policy: bool,
    /// `max_jobs` and `max_bytes` of the policy.
    pub limits: Option<(u64, u64)>,
    /// Jobs of all lanes.
    pub counts: Counts,
    /// Due time of the job that has been due the longest; `None`: none is due.
    pub oldest_due: Option<Wall>,
    /// Connected workers.
    pub workers: u32,
    /// Their free slots.
    pub credits: u32,
    /// Counts since the server started.
    pub totals: Totals,
    /// Why nothing is delivered; empty: deliveries are possible.
    pub held: String,
    /// By route.
    pub lanes: Vec<LaneStats>,
}

/// A lane at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// Route.
    pub route: RouteKey,
    /// Jobs.
    pub counts: Counts,
    /// When the next job is due.
    pub next_due: Option<Wall>,
    /// Why due jobs are not delivered; `None`: they are.
    pub held: Option<Held>,
}

/// The ledger of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Jobs in the store when the server started.
    pub at_start: u64,
    /// Submitted since.
    pub submitted: u64,
    /// Jobs in the store.
    pub present: u64,
    /// Deleted since.
    pub deleted: u64,
}

impl Ledger {
    /// Returns true if no job is missing.
    #[must_use]
    pub fn balances(self) -> bool {
        self.gap() == 0
    }

    /// Returns by how many jobs there are too few; negative: too many.
    pub(crate) fn gap(self) -> i64 {
        let (before, now) = (self.at_start + self.submitted, self.present + self.deleted);
        before.cast_signed().wrapping_sub(now.cast_signed())
    }
}

fn limits(policy: &Queue) -> (u64, u64) {
    let settings = policy.settings();
    (settings.max_jobs.into(), settings.max_bytes)
}

impl State {
    /// Returns the statistics of a queue; of all, if the name is empty.
    pub(crate) fn stats(&self, name: &str, now: Wall) -> Vec<QueueStats> {
        let known = self.by_name.values().filter(|queue| name.is_empty() || &*queue.name == name);
        let mut all: Vec<QueueStats> = known.map(|queue| self.queue_stats(queue, now)).collect();
        for policy in self.queues.iter().filter(|policy| name.is_empty() || policy.name() == name) {
            if !self.by_name.contains_key(policy.name()) {
                all.push(self.queue_stats(&QueueState::new(policy.name().into()), now));
            }
        }
        // Traces of a queue that is gone.
        all.retain(|stats| stats.has_policy || stats.counts != Counts::default());
        all.sort_by(|a, b| a.queue.cmp(&b.queue));
        all
    }

    fn queue_stats(&self, queue: &QueueState, now: Wall) -> QueueStats {
        let policy = self.queues.get(&queue.name).cloned();
        let mut counts = Counts::default();
        queue.lanes.iter().for_each(|lane| counts.add(lane.counts));
        let due = queue.lanes.iter().filter_map(|lane| lane.due(false)).filter(|due| *due <= now);
        let workers = || queue.workers.iter().filter_map(|no| self.workers.get(no));
        QueueStats {
            queue: queue.name.to_string(),
            has_policy: policy.is_some(),
            limits: policy.as_deref().map(limits),
            held: deliverable(policy).err().unwrap_or_default().to_owned(),
            counts,
            oldest_due: due.min(),
            workers: u32::try_from(workers().count()).unwrap_or(u32::MAX),
            credits: workers().map(|worker| worker.credits(&queue.name)).fold(0, u32::saturating_add),
            totals: queue.totals,
            lanes: queue
                .lanes
                .iter()
                .filter(|lane| lane.counts != Counts::default())
                .map(|lane| LaneStats {
                    route: lane.lane.route.clone(),
                    counts: lane.counts,
                    next_due: lane.due(false),
                    held: lane.held.filter(|_| lane.due(false).is_some_and(|due| due <= now)),
                })
                .collect(),
        }
    }

    /// Returns the ledger, given the jobs at the start.
    pub(crate) fn ledger(&self, at_start: u64) -> Ledger {
        let mut ledger = Ledger { at_start, ..Ledger::default() };
        for queue in self.by_name.values() {
            ledger.submitted += queue.totals.submitted;
            ledger.deleted += queue.totals.deleted;
            for lane in queue.lanes.iter() {
                ledger.present += lane.counts.live() + lane.counts.dead + lane.counts.ended;
            }
        }
        ledger
    }
}
