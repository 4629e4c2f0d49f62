//! How far rules have come: a picture of all clients at one moment, asked rule by rule.
//!
//! Clients of a class are one group, so that a question about a rule costs a look at each class and not at each
//! process.

use std::collections::HashMap;
use std::sync::Arc;

use damper_core::{Pattern, Rule};

use crate::class::Class;
use crate::hub::{Hub, Session};
use crate::table::{Guards, Subject, TableView};

/// How far rules have come, for all clients at one moment.
pub(crate) struct Delivery {
    groups: Vec<Group>,
    /// Per rule what the clients that refuse it have acknowledged.
    refusals: HashMap<Pattern, Vec<u64>>,
    guards: Guards,
}

struct Group {
    class: Arc<Class>,
    /// In ascending order.
    acknowledged: Vec<u64>,
}

/// How many clients a rule concerns, and how many of them have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) clients: u32,
    pub(crate) applied: u32,
    pub(crate) refused: u32,
    pub(crate) lacking: u32,
}

impl Delivery {
    /// A picture of all sessions of the fleet.
    pub(crate) fn of(hub: &Hub, view: &TableView) -> Self {
        Self::among(hub.all(), view)
    }

    /// A picture of the sessions of this replica.
    pub(crate) fn here(hub: &Hub, view: &TableView) -> Self {
        Self::among(hub.own(), view)
    }

    fn among(sessions: Vec<Arc<Session>>, view: &TableView) -> Self {
        let mut groups: HashMap<Arc<Class>, Vec<u64>> = HashMap::new();
        let mut refusals: HashMap<Pattern, Vec<u64>> = HashMap::new();
        for session in sessions {
            let progress = session.progress();
            let same_store = progress.epoch == *view.epoch();
            let acknowledged = if same_store { progress.acknowledged_revision() } else { 0 };
            groups.entry(session.class.clone()).or_default().push(acknowledged);
            for (subject, _) in progress.refuses(view) {
                if let Subject::Rule(pattern) = subject {
                    refusals.entry(pattern.clone()).or_default().push(acknowledged);
                }
            }
        }
        let group = |(class, mut acknowledged): (_, Vec<u64>)| {
            acknowledged.sort_unstable();
            Group { class, acknowledged }
        };
        let groups = groups.into_iter().map(group).collect();
        Self { groups, refusals, guards: view.guards().clone() }
    }

    /// How far a rule has come; `rule` is none where this server can not read it.
    pub(crate) fn delivered(&self, pattern: &Pattern, revision: u64, rule: Option<&Rule>) -> Delivered {
        let mut sum = Delivered::default();
        for group in self.groups.iter().filter(|group| group.class.matches(pattern)) {
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

    /// How many clients a guard concerns, and how many of them know nothing of guards.
    pub(crate) fn guarded(&self, pattern: &Pattern) -> Delivered {
        let mut sum = Delivered::default();
        for group in self.groups.iter().filter(|group| group.class.matches(pattern)) {
            let size = count(group.acknowledged.len());
            sum.clients += size;
            sum.lacking += if group.class.knows_guards() { 0 } else { size };
        }
        sum
    }

    /// How many clients kills concern, and how many of them know nothing of kills.
    pub(crate) fn killed(&self, patterns: &[Pattern]) -> Delivered {
        let mut sum = Delivered::default();
        let concerned = |group: &&Group| patterns.iter().any(|pattern| group.class.matches(pattern));
        for group in self.groups.iter().filter(concerned) {
            let size = count(group.acknowledged.len());
            sum.clients += size;
            sum.lacking += if group.class.knows_kills() { 0 } else { size };
        }
        sum
    }

    /// The services and clusters that are connected.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &Class> {
        self.groups.iter().map(|group| &*group.class)
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
