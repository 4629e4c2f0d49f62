//! Requests of the last day with their answers, for repeated request ids.
//!
//! Ids of changes are stored with the change and survive a restart; ids of requests without effect are only
//! here. Ids belong to their principal: none can use up another's. Times are of the monotonic clock. Total
//! memory is limited to [`MAX_BYTES`]: the oldest ids are dropped first, and a repetition of such a request
//! is carried out as a new one.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::Change;
use crate::writer::{Committed, Proposal, ProposeError};

/// Memory limit, by the size of the answers.
pub const MAX_BYTES: usize = 8 << 20;

/// Overhead of an id in addition to its text and keys, estimated.
const ID_BYTES: usize = 256;

/// Keys kept per request. The store has the change of a larger one.
const MAX_KEYS: usize = 16;

/// Authenticated principal and request id.
type Id = (String, String);

/// Stored answers.
#[derive(Debug)]
pub(crate) struct RequestIdLog {
    remember: Duration,
    answers: HashMap<Id, Remembered>,
    /// Ids with their expiry, oldest first.
    order: VecDeque<(Instant, Id)>,
    bytes: usize,
}

#[derive(Debug)]
struct Remembered {
    digest: u64,
    answer: Committed,
}

impl RequestIdLog {
    pub(crate) fn new(remember: Duration) -> Self {
        Self { remember, answers: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// Returns the stored answer of a repeated request id; `None` if the id is new. Writes nothing.
    pub(crate) fn stored_answer(&self, proposal: &Proposal) -> Option<Result<Committed, ProposeError>> {
        let remembered = self.answers.get(&id(&proposal.principal, &proposal.request_id))?;
        Some(remembered.answer_to(proposal))
    }

    /// Stores the answer to a request with an id.
    pub(crate) fn remember(&mut self, proposal: &Proposal, answer: &Committed) {
        if proposal.request_id.is_empty() || answer.repeated {
            return;
        }
        let mut answer = answer.clone();
        if answer.keys.len() > MAX_KEYS {
            answer.keys = [].into();
        }
        let id = id(&proposal.principal, &proposal.request_id);
        self.keep(id, Remembered { digest: proposal.request_digest, answer });
    }

    /// Stores the request of a change made just now.
    pub(crate) fn record(&mut self, change: &Change) {
        if let Some((id, remembered)) = self.unknown(change) {
            self.keep(id, remembered);
        }
    }

    /// Stores the request of a change older than all known ones; false if its request id has expired.
    pub(crate) fn record_older(&mut self, change: &Change, now: SystemTime) -> bool {
        let age = now.duration_since(change.at).unwrap_or_default();
        let Some(left) = self.remember.checked_sub(age) else { return false };
        if let Some((id, remembered)) = self.unknown(change) {
            let bytes = remembered.bytes(&id);
            if self.bytes + bytes > MAX_BYTES {
                return false;
            }
            self.bytes += bytes;
            self.order.push_front((Instant::now() + left, id.clone()));
            self.answers.insert(id, remembered);
        }
        true
    }

    /// Returns the request of a change, if it has an id that is not known.
    fn unknown(&self, change: &Change) -> Option<(Id, Remembered)> {
        let id = id(&change.principal, &change.request_id);
        if change.request_id.is_empty() || self.answers.contains_key(&id) {
            return None;
        }
        let few = change.edits.iter().filter(|_| change.edits.len() <= MAX_KEYS);
        let answer = Committed {
            revision: change.revision,
            unchanged: false,
            repeated: false,
            keys: few
                .map(|edit| (edit.key.clone(), edit.value.is_some().then_some(change.revision)))
                .collect(),
        };
        Some((id, Remembered { digest: change.request_digest, answer }))
    }

    /// Drops expired answers.
    pub(crate) fn forget(&mut self) {
        let now = Instant::now();
        while self.order.front().is_some_and(|(until, _)| *until < now) {
            self.drop_oldest();
        }
    }

    fn keep(&mut self, id: Id, remembered: Remembered) {
        self.bytes += remembered.bytes(&id);
        if let Some(before) = self.answers.insert(id.clone(), remembered) {
            self.bytes -= before.bytes(&id);
        } else {
            self.order.push_back((Instant::now() + self.remember, id));
        }
        while self.bytes > MAX_BYTES {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front()
            && let Some(gone) = self.answers.remove(&id)
        {
            self.bytes -= gone.bytes(&id);
        }
    }
}

fn id(principal: &str, request_id: &str) -> Id {
    (principal.to_owned(), request_id.to_owned())
}

impl Remembered {
    fn answer_to(&self, proposal: &Proposal) -> Result<Committed, ProposeError> {
        if self.digest == proposal.request_digest {
            return Ok(Committed { repeated: true, ..self.answer.clone() });
        }
        Err(ProposeError::RequestIdReused { request_id: proposal.request_id.clone() })
    }

    /// The id is in the map and in the order.
    fn bytes(&self, (principal, request_id): &Id) -> usize {
        let keys = self.answer.keys.iter().map(|(key, _)| key.len() + size_of::<(String, Option<u64>)>());
        ID_BYTES + 2 * (principal.len() + request_id.len()) + keys.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::tests::{edit, request};

    fn answer(keys: usize) -> Committed {
        let keys = (0..keys).map(|key| (format!("rules/{key:0100}"), Some(1))).collect();
        Committed { revision: 1, unchanged: true, repeated: false, keys }
    }

    #[tokio::test]
    async fn what_is_remembered_of_requests_is_bounded() {
        let mut requests = RequestIdLog::new(Duration::from_secs(3600));
        for number in 0..100 {
            let proposal = request(&format!("large {number}"), 1, vec![edit("a", None, None)]);
            requests.remember(&proposal, &answer(10_000));
        }
        assert!(requests.bytes < 100_000, "the keys of a large request are in the store: {}", requests.bytes);
        let (first, count) = (request("large 0", 1, Vec::new()), 200_000);
        assert!(requests.stored_answer(&first).is_some());
        for number in 0..count {
            requests.remember(&request(&format!("{number:0100}"), 1, Vec::new()), &answer(1));
            assert!(requests.bytes <= MAX_BYTES);
        }
        assert!(requests.answers.len() < count && requests.answers.len() == requests.order.len());
        assert!(requests.stored_answer(&first).is_none(), "the oldest is forgotten first");
        let last = request(&format!("{:0100}", count - 1), 1, Vec::new());
        assert!(requests.stored_answer(&last).is_some());
        while !requests.order.is_empty() {
            requests.drop_oldest();
        }
        assert_eq!(requests.bytes, 0);
    }
}
