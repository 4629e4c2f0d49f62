//! Streams all rules, guards and queues of one revision in the order of their keys, without the fields that
//! the server sets.
//!
//! An export is a backup, so it must be complete: an unreadable one is an error, since an import would lose
//! it. Order and contents depend only on what is exported: two stores with the same resources export the
//! same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_net::connection::ConnectionInfo;
use damper_net::limits::{Limit, LimitExceeded, Opened};
use damper_proto::{convert, v1};
use damper_store::Entry;
use prost::Message as _;
use tokio::sync::Semaphore;
use tonic::Request;

use crate::api::response_stream::{Out, Reader, ResponseStream, StreamLimits};
use crate::auth::caller::Caller;
use crate::auth::limits::identity;
use crate::cluster::Cluster;
use crate::cluster::peers::Peers;
use crate::state::error::{ApiError, Current};
use crate::state::history;
use crate::state::history::KeyHistory;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::stored::{StoredGuard, StoredQueue, StoredRule};
use crate::write::Writes;

/// A message ends with the first object beyond this size. An object has at most 64 KiB.
const MESSAGE_BYTES: usize = 64 << 10;
/// Messages buffered for a reader.
const AHEAD: usize = 1;
const EARLIER_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The most unreadable resources that an error lists.
const MAX_LISTED: usize = 10;

pub(crate) async fn open(
    writes: &Writes,
    cluster: &Arc<Cluster>,
    streams: &StreamLimits,
    earlier: &Arc<Semaphore>,
    request: Request<v1::ExportRequest>,
) -> Result<ResponseStream<v1::ExportResponse>, ApiError> {
    let reader = Reader::of(&request, streams);
    let place = place(writes, &request)?;
    let request = request.into_inner();
    let table = match request.revision {
        Some(revision) => history::table_at(&writes.fleet.state, "revision", revision).await?,
        // The store was replaced: this snapshot is the only copy of the known store.
        None if writes.fleet.table().unaccepted.is_some() => writes.fleet.table(),
        None => {
            let newest = history::newest(&writes.fleet.state).await?;
            writes.fleet.state.at_least(newest).await?
        }
    };
    let revision = request.revision.unwrap_or(table.revision());
    let earlier = match revision < table.revision() {
        true => Some(earlier.clone().try_acquire_owned().map_err(|_| already())?),
        false => None,
    };
    let since = {
        let _turn = writes.fleet.state.past.turn().await;
        history::touched(&*writes.fleet.state.store, revision, table.revision(), is_exported).await?
    };
    let objects = objects(&table, since);
    check(&objects)?;
    let cluster = cluster.clone();
    Ok(ResponseStream::of(reader, AHEAD, |out| async move {
        let _places = (place, earlier);
        send(&cluster.peers, revision, objects, out).await
    }))
}

fn already() -> ApiError {
    let text = "an earlier revision is being exported already, and no more are allowed; try again later";
    LimitExceeded { limit: Limit::Exports, text: text.to_owned(), retry_after: Some(EARLIER_AGAIN_AFTER) }
        .into()
}

/// Admits one more export or audit log of the caller.
pub(crate) fn place<T>(writes: &Writes, request: &Request<T>) -> Result<Opened, ApiError> {
    let peer = request.extensions().get::<ConnectionInfo>();
    let who = peer.map(|peer| identity(&Caller::of(request), peer)).unwrap_or_default();
    Ok(writes.limiter.export(&who)?)
}

/// A resource from the snapshot or from the history.
enum ExportedResource {
    Rule(Arc<StoredRule>),
    Guard(Arc<StoredGuard>),
    Queue(Arc<StoredQueue>),
    Entry(Entry),
}

fn is_exported(subject: &ResourceKey) -> bool {
    match subject {
        ResourceKey::Rule(_) | ResourceKey::Guard(_) | ResourceKey::Queue(_) => true,
        ResourceKey::Kill(_) => false,
    }
}

/// Returns the rules, guards and queues before the later changes.
fn objects(
    table: &Snapshot,
    since: BTreeMap<ResourceKey, KeyHistory>,
) -> BTreeMap<ResourceKey, ExportedResource> {
    let rules = table.iter();
    let rules = rules.map(|(pattern, stored)| {
        (ResourceKey::Rule(pattern.clone()), ExportedResource::Rule(stored.clone()))
    });
    let guards = table.guards().iter();
    let guards = guards
        .map(|stored| (ResourceKey::Guard(stored.pattern.clone()), ExportedResource::Guard(stored.clone())));
    let queues = table.queues();
    let queues = queues
        .map(|(name, stored)| (ResourceKey::Queue(name.clone()), ExportedResource::Queue(stored.clone())));
    let mut objects: BTreeMap<ResourceKey, ExportedResource> = rules.chain(guards).chain(queues).collect();
    for (subject, KeyHistory { before, .. }) in since {
        match before {
            Some(entry) => objects.insert(subject, ExportedResource::Entry(entry)),
            None => objects.remove(&subject),
        };
    }
    objects
}

/// Errors if a resource is unreadable.
fn check(objects: &BTreeMap<ResourceKey, ExportedResource>) -> Result<(), ApiError> {
    let mut broken = objects.iter().filter(|(subject, kept)| !is_read(subject, kept)).peekable();
    if broken.peek().is_none() {
        return Ok(());
    }
    Err(unread(broken.map(|(subject, _)| subject)))
}

fn unread<'a>(subjects: impl Iterator<Item = &'a ResourceKey>) -> ApiError {
    let mut named: Vec<String> = subjects.map(ResourceKey::to_string).collect();
    let rest = named.len().saturating_sub(MAX_LISTED);
    named.truncate(MAX_LISTED);
    if rest > 0 {
        named.push(format!("and {rest} more"));
    }
    ApiError::Damaged(format!("unreadable by this control plane: {}", named.join(", ")))
}

fn is_read(subject: &ResourceKey, kept: &ExportedResource) -> bool {
    match kept {
        ExportedResource::Rule(stored) => stored.rule.is_some(),
        ExportedResource::Guard(stored) => stored.guard.is_some(),
        ExportedResource::Queue(stored) => stored.queue.is_some(),
        ExportedResource::Entry(entry) => match Current::read(subject, entry.clone()) {
            Some(Current::Rule(rule)) => convert::rule(&rule).is_ok(),
            Some(Current::Guard(guard)) => convert::guard(&guard).is_ok(),
            Some(Current::Queue(queue)) => convert::queue(&queue).is_ok(),
            Some(Current::Kill(_)) | None => false,
        },
    }
}

async fn send(
    replicas: &Peers,
    revision: u64,
    objects: BTreeMap<ResourceKey, ExportedResource>,
    out: Out<v1::ExportResponse>,
) -> Result<(), ApiError> {
    let message = || v1::ExportResponse { revision, objects: Vec::new(), total: objects.len() as u64 };
    let (mut next, mut bytes) = (message(), 0);
    for (subject, kept) in &objects {
        let object = object(subject, kept).ok_or_else(|| unread(std::iter::once(subject)))?;
        bytes += object.encoded_len();
        next.objects.push(object);
        if bytes > MESSAGE_BYTES {
            let full = std::mem::replace(&mut next, message());
            bytes = 0;
            if out.send(full).await.is_err() {
                return Ok(());
            }
        }
    }
    // The last message is sent even if it is empty, since it has the revision.
    if out.send(next).await.is_ok() {
        replicas.exported(SystemTime::now());
    }
    Ok(())
}

/// Returns the resource without the fields that the server sets.
fn object(subject: &ResourceKey, kept: &ExportedResource) -> Option<v1::Object> {
    use v1::object::Kind;
    let of_rule = |rule: v1::Rule| {
        let v1::Rule { key, policy, owner, .. } = rule;
        Kind::Rule(v1::Rule { key, policy, owner, ..Default::default() })
    };
    let of_guard = |guard: v1::Guard| {
        let v1::Guard { key, ceiling, owner, .. } = guard;
        Kind::Guard(v1::Guard { key, ceiling, owner, ..Default::default() })
    };
    let of_queue = |queue: v1::Queue| Kind::Queue(StoredQueue::authored(queue));
    let kind = match kept {
        ExportedResource::Rule(stored) => of_rule(stored.wire.clone()),
        ExportedResource::Guard(stored) => of_guard(stored.wire.clone()),
        ExportedResource::Queue(stored) => of_queue(stored.wire.clone()),
        ExportedResource::Entry(entry) => match Current::read(subject, entry.clone())? {
            Current::Rule(rule) => of_rule(*rule),
            Current::Guard(guard) => of_guard(*guard),
            Current::Queue(queue) => of_queue(*queue),
            Current::Kill(_) => return None,
        },
    };
    Some(v1::Object { kind: Some(kind) })
}
