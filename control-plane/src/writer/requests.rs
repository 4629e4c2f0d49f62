//! The requests of the last day, so that a repeated one gets its first answer.
//!
//! Ids that led to a change are part of that change and survive a restart; those that changed nothing are
//! remembered only here. Ids are each principal's own: nobody can use up another's. Time is that of the proposals themselves: an id is forgotten by the first proposal
//! that is made more than the settled time later.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use super::{Committed, Proposal, Refusal};
use crate::store::Change;

/// Who asked, as far as it was proven, and by which id.
type Id = (String, String);

/// First answers.
#[derive(Debug)]
pub(super) struct Requests {
    remember: Duration,
    answers: HashMap<Id, Remembered>,
    /// The ids with their times, oldest first.
    order: VecDeque<(SystemTime, Id)>,
}

#[derive(Debug)]
struct Remembered {
    digest: u64,
    answer: Committed,
}

impl Requests {
    pub(super) fn new(remember: Duration) -> Self {
        Self { remember, answers: HashMap::new(), order: VecDeque::new() }
    }

    /// The first answer to this request; none where it is new.
    pub(super) fn recall(&self, proposal: &Proposal) -> Option<Result<Committed, Refusal>> {
        let remembered = self.answers.get(&id(&proposal.principal, &proposal.request_id))?;
        Some(remembered.answer_to(proposal))
    }

    /// Keeps the answer to a request that has an id.
    pub(super) fn remember(&mut self, proposal: &Proposal, answer: &Committed) {
        if proposal.request_id.is_empty() || answer.repeated {
            return;
        }
        let answer = answer.clone();
        let id = id(&proposal.principal, &proposal.request_id);
        self.keep(proposal.at, id, Remembered { digest: proposal.request_digest, answer });
    }

    /// Keeps what a change of the store tells of its request.
    pub(super) fn learn(&mut self, change: &Change) {
        let id = id(&change.principal, &change.request_id);
        if change.request_id.is_empty() || self.answers.contains_key(&id) {
            return;
        }
        let keys = change.edits.iter().map(|edit| {
            let revision = edit.value.is_some().then_some(change.revision);
            (edit.key.clone(), revision)
        });
        let answer =
            Committed { revision: change.revision, unchanged: false, repeated: false, keys: keys.collect() };
        self.keep(change.at, id, Remembered { digest: change.request_digest, answer });
    }

    /// Forgets what is older than the settled time at `now`.
    pub(super) fn forget(&mut self, now: SystemTime) {
        while let Some((at, _)) = self.order.front() {
            if now.duration_since(*at).is_ok_and(|age| age <= self.remember) || *at > now {
                return;
            }
            if let Some((_, id)) = self.order.pop_front() {
                self.answers.remove(&id);
            }
        }
    }

    fn keep(&mut self, at: SystemTime, id: Id, remembered: Remembered) {
        if self.answers.insert(id.clone(), remembered).is_none() {
            self.order.push_back((at, id));
        }
    }
}

fn id(principal: &str, request_id: &str) -> Id {
    (principal.to_owned(), request_id.to_owned())
}

impl Remembered {
    fn answer_to(&self, proposal: &Proposal) -> Result<Committed, Refusal> {
        if self.digest == proposal.request_digest {
            return Ok(Committed { repeated: true, ..self.answer.clone() });
        }
        Err(Refusal::RequestIdReused { request_id: proposal.request_id.clone() })
    }
}
