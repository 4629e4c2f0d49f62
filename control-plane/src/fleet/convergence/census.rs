//! Who has a change, of those whom it concerns, at one moment after another.
//!
//! A change concerns the clients whose caller part one of its rules, guards or kills matches; a guard with a repeat
//! limit, which its callee carries out, has every caller and so the callee too. What a change asks of a client depends
//! on its class alone and is looked up once for each class and table. Between two looks clients come and go: who had
//! the change when it left has it, and who was still waited for is remembered by its names until it comes back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use damper_core::feature;
use damper_proto::v1::{self, laggard::Reason};

use crate::class::Class;
use crate::hub::{Hub, Session};
use crate::table::{Subject, TableView};

/// So many of those who do not have it are named.
const MAX_LAGGARDS: usize = 100;

/// The looks at one change.
pub(super) struct Census {
    revision: u64,
    subjects: HashSet<Subject>,
    /// For this table, what the change asks of each class.
    asked_at: u64,
    asked: HashMap<Arc<Class>, Asked>,
    /// Those who are connected, as of the last look.
    seen: HashMap<u64, Seen>,
    /// Those who were connected, by their names.
    gone: HashMap<Names, Gone>,
}

/// What the change asks of the clients of a class.
#[derive(Clone, Copy)]
enum Asked {
    /// It does not concern them.
    Nothing,
    /// To take it over.
    ToHaveIt,
    /// More than they can; what they lack.
    TooMuch(&'static str),
}

/// Service, cluster, instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Names {
    class: ServiceAndCluster,
    instance: String,
}

type ServiceAndCluster = (String, String);

/// A connected client that the change concerns.
struct Seen {
    names: Names,
    acknowledged_revision: u64,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    HasIt,
    Waiting,
    Refused(String),
    Lacks(&'static str),
}

/// A client that is no longer connected.
enum Gone {
    WithIt,
    Left { acknowledged_revision: u64 },
}

impl Census {
    pub(super) fn new(revision: u64, subjects: Vec<Subject>) -> Self {
        Self {
            revision,
            subjects: subjects.into_iter().collect(),
            asked_at: 0,
            asked: HashMap::new(),
            seen: HashMap::new(),
            gone: HashMap::new(),
        }
    }

    /// Looks at everybody who is connected, and counts.
    pub(super) fn take(&mut self, hub: &Hub, view: &TableView) -> v1::Convergence {
        if self.asked_at != view.revision() {
            self.asked.clear();
            self.asked_at = view.revision();
        }
        let mut now = HashMap::with_capacity(self.seen.len());
        for session in hub.all() {
            let asked = self.asked_of(&session.class, view);
            if let Some(seen) = self.look_at(&session, asked, view) {
                now.insert(session.id(), seen);
            }
        }
        let before = std::mem::replace(&mut self.seen, now);
        for (id, Seen { names, acknowledged_revision, state }) in before {
            let left = match state {
                State::HasIt => Gone::WithIt,
                State::Waiting => Gone::Left { acknowledged_revision },
                // Nobody waits for these.
                State::Refused(_) | State::Lacks(_) => continue,
            };
            if !self.seen.contains_key(&id) {
                self.gone.insert(names, left);
            }
        }
        for seen in self.seen.values() {
            self.gone.remove(&seen.names);
        }
        self.count()
    }

    fn asked_of(&mut self, class: &Arc<Class>, view: &TableView) -> Asked {
        if let Some(asked) = self.asked.get(class) {
            return *asked;
        }
        let asked = self.examine(class, view);
        self.asked.insert(class.clone(), asked);
        asked
    }

    fn examine(&self, class: &Class, view: &TableView) -> Asked {
        let mut asked = Asked::Nothing;
        for subject in self.subjects.iter().filter(|subject| class.matches(subject.pattern())) {
            asked = Asked::ToHaveIt;
            if let Some(lacks) = lacks(subject, class, view) {
                return Asked::TooMuch(lacks);
            }
        }
        asked
    }

    fn look_at(&self, session: &Session, asked: Asked, view: &TableView) -> Option<Seen> {
        let progress = session.progress();
        let same_store = progress.epoch == *view.epoch();
        let acknowledged_revision = if same_store { progress.acknowledged_revision() } else { 0 };
        let refusal = || {
            let of_change = |subject: &Subject| self.subjects.contains(subject);
            let mut current = progress.refuses(view);
            current.find(|(subject, refusal)| of_change(subject) && refusal.revision >= self.revision)
        };
        let state = match asked {
            Asked::Nothing => return None,
            Asked::TooMuch(lacks) => State::Lacks(lacks),
            Asked::ToHaveIt if acknowledged_revision < self.revision => State::Waiting,
            Asked::ToHaveIt => refusal().map_or(State::HasIt, |(subject, refusal)| {
                State::Refused(format!("{subject}: {}", refusal.reason))
            }),
        };
        let class = (session.class.service.clone(), session.class.cluster.clone());
        let names = Names { class, instance: session.instance.clone() };
        Some(Seen { names, acknowledged_revision, state })
    }

    fn count(&self) -> v1::Convergence {
        let mut sum = v1::Convergence { revision: self.revision, ..Default::default() };
        let mut laggards = Vec::new();
        for Seen { names, acknowledged_revision, state } in self.seen.values() {
            let (count, lags) = match state {
                State::HasIt => (&mut sum.acknowledged, None),
                State::Waiting => (&mut sum.waiting, Some((Reason::Waiting, ""))),
                State::Refused(why) => (&mut sum.refused, Some((Reason::Refused, why.as_str()))),
                State::Lacks(what) => (&mut sum.lacking_features, Some((Reason::LackingFeature, *what))),
            };
            *count += 1;
            laggards.extend(lags.map(|(reason, detail)| (reason, names, *acknowledged_revision, detail)));
        }
        for (names, gone) in &self.gone {
            match gone {
                Gone::WithIt => sum.acknowledged += 1,
                Gone::Left { acknowledged_revision } => {
                    sum.left += 1;
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
        sum
    }
}

impl Names {
    fn identity(&self) -> v1::Identity {
        let (service, cluster) = self.class.clone();
        v1::Identity { service, cluster, instance: self.instance.clone() }
    }
}

/// What keeps clients of a class from carrying out what is there now; what is gone asks nothing of anybody.
fn lacks(subject: &Subject, class: &Class, view: &TableView) -> Option<&'static str> {
    view.revision_of(subject)?;
    match subject {
        Subject::Rule(pattern) => {
            let rule = view.stored(pattern).and_then(|stored| stored.rule.as_deref());
            class.off_because(view.guards(), pattern, rule)
        }
        Subject::Guard(_) => (!class.knows_guards()).then_some(feature::GUARDS),
        Subject::Kill(_) => (!class.knows_kills()).then_some(feature::KILL_SWITCH),
    }
}

/// Those who need somebody's hand come first.
fn order(reason: Reason) -> u8 {
    match reason {
        Reason::Refused => 0,
        Reason::LackingFeature => 1,
        Reason::Waiting | Reason::Unspecified => 2,
        Reason::Left => 3,
    }
}
