//! Rules, guards, queues, kills, tokens, actions on jobs and changes in the form of the history API.

use damper_core::Faults;
use damper_proto::v1::{self, object, object_key};
use damper_store::{Change, Edit, Entry};

use crate::api::history::filter::Changes;
use crate::state::error::Current;
use crate::state::job_action;
use crate::state::job_action::JOB_ACTION;
use crate::state::resource_key::ResourceKey;
use crate::state::stored::StoredQueue;
use crate::state::tokens::secret::TokenId;
use crate::state::tokens::{description, token_of};
use crate::write::request::{read_key, read_queue_name};

impl From<Current> for v1::Object {
    fn from(current: Current) -> Self {
        let kind = match current {
            Current::Rule(rule) => object::Kind::Rule(*rule),
            Current::Guard(guard) => object::Kind::Guard(*guard),
            Current::Kill(kill) => object::Kind::Kill(*kill),
            Current::Queue(queue) => object::Kind::Queue(*queue),
        };
        Self { kind: Some(kind) }
    }
}

/// The subject of a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HistorySubject {
    Subject(ResourceKey),
    Token(TokenId),
    /// An action on jobs of this queue.
    Jobs(String),
}

impl HistorySubject {
    /// Returns the subject of an edit; `None` if the history does not show it.
    fn of(edit: &Edit) -> Option<Self> {
        if edit.key == JOB_ACTION {
            return edit.value.as_ref().map(|value| Self::Jobs(job_action::queue(&job_action::read(value))));
        }
        let key = edit.key.as_str();
        token_of(key).map(Self::Token).or_else(|| ResourceKey::of_key(key).map(Self::Subject))
    }

    fn key(&self) -> v1::ObjectKey {
        match self {
            Self::Subject(subject) => key(subject),
            Self::Token(id) => v1::ObjectKey { kind: Some(object_key::Kind::Token(id.to_string())) },
            Self::Jobs(queue) => v1::ObjectKey { kind: Some(object_key::Kind::Jobs(queue.clone())) },
        }
    }

    fn read(&self, entry: Entry) -> v1::Object {
        match self {
            Self::Subject(subject) => read(subject, entry),
            Self::Token(id) => token(id, &entry),
            Self::Jobs(_) => v1::Object { kind: Some(object::Kind::Jobs(job_action::read(&entry.value))) },
        }
    }
}

/// Returns a stored token without its secret hash.
pub(crate) fn token(id: &TokenId, entry: &Entry) -> v1::Object {
    v1::Object { kind: Some(object::Kind::Token(description(id, &entry.value, entry.revision))) }
}

/// Returns the key of a rule, guard, kill or queue.
pub(crate) fn key(subject: &ResourceKey) -> v1::ObjectKey {
    let kind = match subject {
        ResourceKey::Rule(pattern) => object_key::Kind::Rule(pattern.into()),
        ResourceKey::Guard(pattern) => object_key::Kind::Guard(pattern.into()),
        ResourceKey::Kill(pattern) => object_key::Kind::Kill(pattern.into()),
        ResourceKey::Queue(name) => object_key::Kind::Queue(name.clone()),
    };
    v1::ObjectKey { kind: Some(kind) }
}

/// Reads the key of a rule, guard, kill, token or queue.
pub(crate) fn named(key: Option<v1::ObjectKey>) -> Result<HistorySubject, Faults> {
    let subject = match key.and_then(|key| key.kind) {
        Some(object_key::Kind::Rule(key)) => read_key("key.rule", Some(&key)).map(ResourceKey::Rule),
        Some(object_key::Kind::Guard(key)) => read_key("key.guard", Some(&key)).map(ResourceKey::Guard),
        Some(object_key::Kind::Kill(key)) => read_key("key.kill", Some(&key)).map(ResourceKey::Kill),
        Some(object_key::Kind::Queue(name)) => read_queue_name("key.queue", &name),
        Some(object_key::Kind::Token(id)) => {
            return TokenId::parse(&id)
                .map(HistorySubject::Token)
                .ok_or_else(|| fault("key.token", "is not the id of a token"));
        }
        Some(object_key::Kind::Jobs(_)) => Err(fault("key.jobs", "is only in lists of changes")),
        None => Err(fault("key", "is required: rule, guard, kill, token or queue")),
    };
    subject.map(HistorySubject::Subject)
}

fn fault(path: &str, problem: &str) -> Faults {
    let mut faults = Faults::none();
    faults.add(path, problem);
    faults
}

/// Returns a stored rule, guard, kill or queue; if it is unreadable, only its key and revision.
pub(crate) fn read(subject: &ResourceKey, entry: Entry) -> v1::Object {
    let unread = Entry { revision: entry.revision, value: bytes::Bytes::new() };
    let read = Current::read(subject, entry).or_else(|| Current::read(subject, unread));
    read.expect("empty bytes are a message without fields").into()
}

/// True if two objects are equal except for author and time.
pub(crate) fn same(one: Option<&v1::Object>, other: Option<&v1::Object>) -> bool {
    use object::Kind::{Guard, Kill, Queue, Rule};
    let kind = |object: Option<&v1::Object>| object.and_then(|object| object.kind.clone());
    match (kind(one), kind(other)) {
        (Some(Rule(one)), Some(Rule(other))) => one.policy == other.policy && one.owner == other.owner,
        (Some(Guard(one)), Some(Guard(other))) => one.ceiling == other.ceiling && one.owner == other.owner,
        (Some(Kill(one)), Some(Kill(other))) => {
            (one.calls, &one.reason, &one.expires_at) == (other.calls, &other.reason, &other.expires_at)
        }
        (Some(Queue(one)), Some(Queue(other))) => StoredQueue::authored(one) == StoredQueue::authored(other),
        (None, None) => true,
        _ => false,
    }
}

/// Returns the owners of a resource before and after a change.
pub(crate) fn owners(change: &v1::ObjectChange) -> impl Iterator<Item = &str> {
    [&change.before, &change.after].into_iter().flatten().map(owner)
}

fn owner(object: &v1::Object) -> &str {
    match &object.kind {
        Some(object::Kind::Rule(rule)) => &rule.owner,
        Some(object::Kind::Guard(guard)) => &guard.owner,
        Some(object::Kind::Queue(queue)) => &queue.owner,
        Some(object::Kind::Kill(_) | object::Kind::Token(_) | object::Kind::Jobs(_)) | None => "",
    }
}

/// Returns a change without its objects.
pub(crate) fn head(change: &Change) -> v1::Change {
    let objects = change.edits.iter().filter(|edit| HistorySubject::of(edit).is_some()).count();
    v1::Change {
        revision: change.revision,
        at: Some(change.at.into()),
        author: change.author.clone(),
        reason: change.reason.clone(),
        request_id: change.request_id.clone(),
        objects: Vec::new(),
        object_count: u32::try_from(objects).unwrap_or(u32::MAX),
        peer: change.peer.clone(),
        principal: change.principal.clone(),
    }
}

/// Returns the objects of a change that pass the filter, in the order of their keys.
pub(crate) fn objects<'a>(
    change: &'a Change,
    filter: &'a Changes,
) -> impl Iterator<Item = v1::ObjectChange> + use<'a> {
    let named = |edit: &'a Edit| HistorySubject::of(edit).map(|named| (named, edit));
    let mut edits: Vec<_> = change.edits.iter().filter_map(named).collect();
    edits.retain(|(named, _)| filter.accepts(named));
    edits.sort_by(|(one, _), (other, _)| one.cmp(other));
    let changes = edits.into_iter().map(|(named, edit)| {
        let after = edit.value.clone().map(|value| Entry { revision: change.revision, value });
        // The action before is another one.
        let before = edit.before.clone().filter(|_| !matches!(named, HistorySubject::Jobs(_)));
        v1::ObjectChange {
            key: Some(named.key()),
            before: before.map(|entry| named.read(entry)),
            after: after.map(|entry| named.read(entry)),
        }
    });
    changes.filter(|change| filter.accepts_owner(owners(change)))
}
