//! Counts the clients that have applied a change, over time.
//!
//! A change concerns the clients that match the caller part of one of its rules, guards or kills. A guard
//! with a repeat limit, which the callee enforces, has any caller and so includes the callee. The requirement
//! for a client depends on its group alone and is computed once per group and snapshot. A client is a
//! process: of several streams with the same names, one of which may be half dead, the newest counts.
//!
//! Clients come and go between two counts. A client that left after it had the change still counts as having
//! it. One that left before is remembered by its names until it returns. It counts towards the share for
//! [`GRACE`] only, because a restarted process has another name.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use damper_proto::v1::{self, laggard::Reason};
use tokio::time::Instant;

use crate::clients::group::ClientGroup;
use crate::clients::session::ClientSession;
use crate::push::sessions::Sessions;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;

/// The share of concerned clients that a request can wait for.
pub const CONVERGENCE_SHARE: RangeInclusive<f64> = 0.01..=1.0;

/// The time that a request can wait; default 30 s.
pub const CONVERGENCE_WITHIN: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);

/// The number of named clients without the change.
const MAX_LAGGARDS: usize = 100;
/// The number of remembered clients that left.
const MAX_GONE: usize = 2_000;
/// A client that lost its stream has most likely reconnected by then.
const GRACE: Duration = Duration::from_secs(2);

/// The resources that a change concerns. There can be tens of thousands.
pub(crate) type ChangedSubjects = Arc<HashSet<ResourceKey>>;

/// Subjects by the store's epoch and the revision.
type WatchedSubjects = HashMap<(Arc<str>, u64), Weak<HashSet<ResourceKey>>>;

/// The changes that are watched now: all watchers of one share its subjects.
#[derive(Default)]
pub(crate) struct WatchedChanges(Mutex<WatchedSubjects>);

impl WatchedChanges {
    /// Returns the subjects of a change of this store if another watcher has them.
    pub(crate) fn known(&self, epoch: &Arc<str>, revision: u64) -> Option<ChangedSubjects> {
        self.watched().get(&(epoch.clone(), revision))?.upgrade()
    }

    /// Shares the subjects with later watchers.
    pub(crate) fn share(
        &self,
        epoch: &Arc<str>,
        revision: u64,
        subjects: ChangedSubjects,
    ) -> ChangedSubjects {
        let mut watched = self.watched();
        watched.retain(|_, subjects| subjects.strong_count() > 0);
        let known = watched.entry((epoch.clone(), revision)).or_default();
        // Two watchers may have read them at once.
        known.upgrade().unwrap_or_else(|| {
            *known = Arc::downgrade(&subjects);
            subjects
        })
    }

    fn watched(&self) -> MutexGuard<'_, WatchedSubjects> {
        self.0.lock().expect("no holder of the lock panics")
    }
}

/// The counts of one change over time.
pub(crate) struct ConvergenceTracker {
    revision: u64,
    subjects: ChangedSubjects,
    /// The requirement for each group, for this snapshot.
    asked_at: u64,
    asked: HashMap<Arc<ClientGroup>, RequiredAck>,
    /// The clients that were connected at the last count.
    seen: HashMap<Names, TrackedClient>,
    /// The clients that were connected before, by their names.
    gone: HashMap<Names, DepartedClient>,
}

/// What a change requires of the clients of a group.
#[derive(Clone, Copy)]
enum RequiredAck {
    /// The change does not concern them.
    Nothing,
    /// Apply the change.
    ToHaveIt,
    /// Features that they lack.
    TooMuch(&'static str),
}

/// Service, cluster, instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Names {
    class: ServiceAndCluster,
    instance: String,
}

type ServiceAndCluster = (String, String);

/// The progress of a change.
pub(crate) struct ConvergenceCounts {
    pub(crate) counts: v1::Convergence,
    /// The clients that left and may still return, and when the first of them no longer counts.
    pub(crate) awaited: u32,
    pub(crate) awaited_until: Option<Instant>,
}

/// A connected client that the change concerns.
struct TrackedClient {
    acknowledged_revision: u64,
    state: ClientAckState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientAckState {
    HasIt,
    Waiting,
    Refused(String),
    Lacks(&'static str),
}

/// A client that is no longer connected.
enum DepartedClient {
    WithIt,
    Left { acknowledged_revision: u64, at: Instant },
}

impl ConvergenceTracker {
    pub(crate) fn new(revision: u64, subjects: ChangedSubjects) -> Self {
        Self {
            revision,
            subjects,
            asked_at: 0,
            asked: HashMap::new(),
            seen: HashMap::new(),
            gone: HashMap::new(),
        }
    }

    /// Counts all connected clients.
    pub(crate) fn take(&mut self, hub: &Sessions, view: &Snapshot, at: Instant) -> ConvergenceCounts {
        if self.asked_at != view.revision() {
            self.asked.clear();
            self.asked_at = view.revision();
        }
        let mut now = HashMap::with_capacity(self.seen.len());
        for session in newest(&hub.all()) {
            let asked = self.asked_of(&session.class, view);
            if let Some(seen) = self.track(session, asked, view) {
                now.insert(Names::of(session), seen);
            }
        }
        let before = std::mem::replace(&mut self.seen, now);
        for (names, TrackedClient { acknowledged_revision, state }) in before {
            let left = match state {
                ClientAckState::HasIt => DepartedClient::WithIt,
                ClientAckState::Waiting => DepartedClient::Left { acknowledged_revision, at },
                // These clients are not waited for.
                ClientAckState::Refused(_) | ClientAckState::Lacks(_) => continue,
            };
            if !self.seen.contains_key(&names) && self.has_room(at) {
                self.gone.insert(names, left);
            }
        }
        for names in self.seen.keys() {
            self.gone.remove(names);
        }
        self.count(at)
    }

    /// Makes room for one more client that left by dropping one past [`GRACE`]; false if there is none.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.gone.len() >= MAX_GONE {
            self.gone.retain(|_, gone| matches!(gone, DepartedClient::Left { at, .. } if now < *at + GRACE));
        }
        self.gone.len() < MAX_GONE
    }

    fn asked_of(&mut self, class: &Arc<ClientGroup>, view: &Snapshot) -> RequiredAck {
        if let Some(asked) = self.asked.get(class) {
            return *asked;
        }
        let asked = self.examine(class, view);
        self.asked.insert(class.clone(), asked);
        asked
    }

    fn examine(&self, class: &ClientGroup, view: &Snapshot) -> RequiredAck {
        let mut asked = RequiredAck::Nothing;
        for subject in self.subjects.iter().filter(|subject| class.is_concerned(subject)) {
            asked = RequiredAck::ToHaveIt;
            if let Some(lacks) = class.lacks(subject, view) {
                return RequiredAck::TooMuch(lacks);
            }
        }
        asked
    }

    fn track(&self, session: &ClientSession, asked: RequiredAck, view: &Snapshot) -> Option<TrackedClient> {
        let progress = session.progress();
        let same_store = progress.epoch == *view.epoch();
        let acknowledged_revision = if same_store { progress.acknowledged_revision() } else { 0 };
        let refusal = || {
            let of_change = |subject: &ResourceKey| self.subjects.contains(subject);
            let mut current = progress.refuses(view);
            current.find(|(subject, refusal)| of_change(subject) && refusal.revision >= self.revision)
        };
        let state = match asked {
            RequiredAck::Nothing => return None,
            RequiredAck::TooMuch(lacks) => ClientAckState::Lacks(lacks),
            RequiredAck::ToHaveIt if acknowledged_revision < self.revision => ClientAckState::Waiting,
            RequiredAck::ToHaveIt => refusal().map_or(ClientAckState::HasIt, |(subject, refusal)| {
                ClientAckState::Refused(format!("{subject}: {}", refusal.reason))
            }),
        };
        Some(TrackedClient { acknowledged_revision, state })
    }

    fn count(&self, now: Instant) -> ConvergenceCounts {
        let mut sum = v1::Convergence { revision: self.revision, ..Default::default() };
        let mut laggards = Vec::new();
        for (names, TrackedClient { acknowledged_revision, state }) in &self.seen {
            let (count, lags) = match state {
                ClientAckState::HasIt => (&mut sum.acknowledged, None),
                ClientAckState::Waiting => (&mut sum.waiting, Some((Reason::Waiting, ""))),
                ClientAckState::Refused(why) => (&mut sum.refused, Some((Reason::Refused, why.as_str()))),
                ClientAckState::Lacks(what) => {
                    (&mut sum.lacking_features, Some((Reason::LackingFeature, *what)))
                }
            };
            *count += 1;
            laggards.extend(lags.map(|(reason, detail)| (reason, names, *acknowledged_revision, detail)));
        }
        let (mut awaited, mut awaited_until) = (0, None::<Instant>);
        for (names, gone) in &self.gone {
            match gone {
                DepartedClient::WithIt => sum.acknowledged += 1,
                DepartedClient::Left { acknowledged_revision, at } => {
                    sum.left += 1;
                    let until = *at + GRACE;
                    if now < until {
                        awaited += 1;
                        awaited_until = Some(awaited_until.map_or(until, |first| first.min(until)));
                    }
                    laggards.push((Reason::Left, names, *acknowledged_revision, ""));
                }
            }
        }
        sum.affected = sum.acknowledged + sum.waiting + sum.refused + sum.lacking_features + sum.left;
        laggards.sort_by_key(|(reason, names, ..)| (order(*reason), *names));
        sum.laggards = laggards
            .into_iter()
            .take(MAX_LAGGARDS)
            .map(|(reason, names, acknowledged_revision, detail)| v1::Laggard {
                identity: Some(names.identity()),
                acknowledged_revision,
                reason: reason.into(),
                detail: detail.to_owned(),
            })
            .collect();
        ConvergenceCounts { counts: sum, awaited, awaited_until }
    }
}

/// Returns the newest stream of each process.
fn newest(sessions: &[Arc<ClientSession>]) -> impl Iterator<Item = &Arc<ClientSession>> {
    let mut newest: HashMap<_, &Arc<ClientSession>> = HashMap::with_capacity(sessions.len());
    for session in sessions {
        let names = (&session.class.service, &session.class.cluster, &session.instance);
        let known = newest.entry(names).or_insert(session);
        if known.age_rank() < session.age_rank() {
            *known = session;
        }
    }
    newest.into_values()
}

impl ConvergenceCounts {
    /// True if this share of the concerned clients has the change, or if it concerns none. Clients that left
    /// for good do not count, unless all did.
    pub(crate) fn reaches(&self, share: f64) -> bool {
        let v1::Convergence { affected, acknowledged, left, .. } = self.counts;
        let of = affected - (left - self.awaited);
        let has_none = affected > 0 && acknowledged == 0;
        // Shares are decimals and counts are whole: the tolerance changes no other result.
        !has_none && f64::from(acknowledged) + 1e-6 >= share * f64::from(of)
    }

    /// True if no client is waited for, and too many cannot or will not apply the change.
    pub(crate) fn is_hopeless(&self, share: f64) -> bool {
        let v1::Convergence { waiting, refused, lacking_features, .. } = self.counts;
        let has_reason = refused + lacking_features > 0;
        has_reason && waiting == 0 && self.awaited == 0 && !self.reaches(share)
    }
}

impl Names {
    fn of(session: &ClientSession) -> Self {
        let class = (session.class.service.clone(), session.class.cluster.clone());
        Self { class, instance: session.instance.clone() }
    }

    fn identity(&self) -> v1::Identity {
        let (service, cluster) = self.class.clone();
        v1::Identity { service, cluster, instance: self.instance.clone() }
    }
}

/// Clients that need an operator come first.
fn order(reason: Reason) -> u8 {
    match reason {
        Reason::Refused => 0,
        Reason::LackingFeature => 1,
        Reason::Waiting | Reason::Unspecified => 2,
        Reason::Left => 3,
    }
}

#[cfg(test)]
mod tests {
    use damper_core::Pattern;

    use super::*;

    fn counted(acknowledged: u32, others: u32, left: u32, awaited: u32) -> ConvergenceCounts {
        let affected = acknowledged + others + left;
        let counts = v1::Convergence { affected, acknowledged, refused: others, left, ..Default::default() };
        ConvergenceCounts { counts, awaited, awaited_until: None }
    }

    #[test]
    fn a_share_is_reached_by_whole_clients() {
        for (acknowledged, affected, share, expected) in [
            (0, 0, 1.0, true),
            (0, 1, 0.01, false),
            (99, 100, 0.99, true),
            (98, 100, 0.99, false),
            (989, 1000, 0.99, false),
            (990, 1000, 0.99, true),
            (7, 10, 0.7, true),
            (9_999, 10_000, 1.0, false),
        ] {
            let counted = counted(acknowledged, affected - acknowledged, 0, 0);
            assert_eq!(counted.reaches(share), expected, "{acknowledged}/{affected}");
        }
    }

    #[test]
    fn who_left_counts_only_as_long_as_it_may_come_back() {
        for (counted, reaches, hopeless) in [
            (counted(3, 0, 2, 0), true, false),
            (counted(3, 0, 2, 1), false, false),
            (counted(3, 1, 2, 1), false, false),
            (counted(3, 1, 2, 0), false, true),
            // No client has the change: all have left, and others may connect.
            (counted(0, 0, 2, 0), false, false),
        ] {
            assert_eq!((counted.reaches(1.0), counted.is_hopeless(1.0)), (reaches, hopeless));
        }
    }

    #[test]
    fn watchers_of_a_change_share_its_subjects() {
        let (changes, epoch) = (WatchedChanges::default(), Arc::from("e"));
        let read = || {
            ChangedSubjects::new(HashSet::from([ResourceKey::Kill(
                Pattern::parse("*", "*", "a", "*").unwrap(),
            )]))
        };
        let first = changes.share(&epoch, 1, read());
        assert!(Arc::ptr_eq(&first, &changes.share(&epoch, 1, read())), "read at the same time");
        assert!(Arc::ptr_eq(&first, &changes.known(&epoch, 1).unwrap()));
        assert!(changes.known(&epoch, 2).is_none() && changes.known(&Arc::from("f"), 1).is_none());
        drop(first);
        assert!(changes.known(&epoch, 1).is_none());
        changes.share(&epoch, 2, read());
        assert_eq!(changes.watched().len(), 1, "what nothing watches is forgotten");
    }

    #[test]
    fn clients_that_left_are_remembered_up_to_a_limit() {
        let mut census = ConvergenceTracker::new(1, ChangedSubjects::default());
        let begun = Instant::now();
        for n in 0..MAX_GONE {
            assert!(census.has_room(begun), "{n}");
            let class = ("shop".to_owned(), "default".to_owned());
            let left = DepartedClient::Left { acknowledged_revision: 0, at: begun };
            census.gone.insert(Names { class, instance: n.to_string() }, left);
        }
        assert!(!census.has_room(begun));
        assert_eq!(census.count(begun).awaited as usize, MAX_GONE);
        // Their return is no longer waited for.
        assert!(census.has_room(begun + GRACE));
        assert_eq!(census.count(begun + GRACE).counts.left, 0);
    }
}
