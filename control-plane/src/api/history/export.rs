//! Everything at one revision: all rules and guards, in the order of their keys, without what the server set.
//!
//! It is a backup and must not lie: where a rule or guard can not be read it is named and nothing is sent, since an
//! import would lose it. The order and the contents depend on the rules and guards alone, so that two stores with
//! the same ones give the same answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::{convert, v1};
use prost::Message as _;
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
use crate::state::stored::{StoredGuard, StoredRule};
use crate::write::Writes;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Opened;
use damper_store::Entry;

/// A message ends with the object that makes it longer than this; one has at most 64 KiB.
const MESSAGE_BYTES: usize = 64 << 10;
/// How many messages may wait for a reader.
const AHEAD: usize = 1;
/// So many of those that can not be read are named.
const MAX_NAMED: usize = 10;

pub(crate) async fn open(
    writes: &Writes,
    cluster: &Arc<Cluster>,
    streams: &StreamLimits,
    request: Request<v1::ExportRequest>,
) -> Result<ResponseStream<v1::ExportResponse>, ApiError> {
    let reader = Reader::of(&request, streams);
    let place = place(writes, &request)?;
    let request = request.into_inner();
    let table = match request.revision {
        Some(revision) => history::table_at(&writes.fleet.state, "revision", revision).await?,
        // The store is another one: what is in memory is all there is of the known one, and worth a copy.
        None if writes.fleet.table().unaccepted.is_some() => writes.fleet.table(),
        None => {
            let newest = history::newest(&writes.fleet.state).await?;
            writes.fleet.state.at_least(newest).await?
        }
    };
    let revision = request.revision.unwrap_or(table.revision());
    let since = history::touched(&*writes.fleet.state.store, revision, table.revision(), is_exported).await?;
    let objects = objects(&table, since);
    check(&objects)?;
    let cluster = cluster.clone();
    Ok(ResponseStream::of(reader, AHEAD, |out| async move {
        let _place = place;
        send(&cluster.peers, revision, objects, out).await
    }))
}

/// Room for one more export or audit log of whoever asks.
pub(crate) fn place<T>(writes: &Writes, request: &Request<T>) -> Result<Opened, ApiError> {
    let peer = request.extensions().get::<ConnectionInfo>();
    let who = peer.map(|peer| identity(&Caller::of(request), peer)).unwrap_or_default();
    Ok(writes.limiter.export(&who)?)
}

/// A rule or guard as the table or the history has it.
enum ExportedResource {
    Rule(Arc<StoredRule>),
    Guard(Arc<StoredGuard>),
    Entry(Entry),
}

fn is_exported(subject: &ResourceKey) -> bool {
    match subject {
        ResourceKey::Rule(_) | ResourceKey::Guard(_) => true,
        ResourceKey::Kill(_) => false,
    }
}

/// What there was before the changes since.
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
    let mut objects: BTreeMap<ResourceKey, ExportedResource> = rules.chain(guards).collect();
    for (subject, KeyHistory { before, .. }) in since {
        match before {
            Some(entry) => objects.insert(subject, ExportedResource::Entry(entry)),
            None => objects.remove(&subject),
        };
    }
    objects
}

/// Refuses to hand out what is not all there is.
fn check(objects: &BTreeMap<ResourceKey, ExportedResource>) -> Result<(), ApiError> {
    let mut broken = objects.iter().filter(|(subject, kept)| !is_read(subject, kept)).peekable();
    if broken.peek().is_none() {
        return Ok(());
    }
    Err(unread(broken.map(|(subject, _)| subject)))
}

fn unread<'a>(subjects: impl Iterator<Item = &'a ResourceKey>) -> ApiError {
    let mut named: Vec<String> = subjects.map(ResourceKey::to_string).collect();
    let rest = named.len().saturating_sub(MAX_NAMED);
    named.truncate(MAX_NAMED);
    if rest > 0 {
        named.push(format!("and {rest} more"));
    }
    ApiError::Damaged(format!("can not be read by this control plane: {}", named.join(", ")))
}

fn is_read(subject: &ResourceKey, kept: &ExportedResource) -> bool {
    match kept {
        ExportedResource::Rule(stored) => stored.rule.is_some(),
        ExportedResource::Guard(stored) => stored.guard.is_some(),
        ExportedResource::Entry(entry) => match Current::read(subject, entry.clone()) {
            Some(Current::Rule(rule)) => convert::rule(&rule).is_ok(),
            Some(Current::Guard(guard)) => convert::guard(&guard).is_ok(),
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
    // The last one also where it is empty: an answer says its revision.
    if out.send(next).await.is_ok() {
        replicas.exported(SystemTime::now());
    }
    Ok(())
}

/// Without what the server set.
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
    let kind = match kept {
        ExportedResource::Rule(stored) => of_rule(stored.wire.clone()),
        ExportedResource::Guard(stored) => of_guard(stored.wire.clone()),
        ExportedResource::Entry(entry) => match Current::read(subject, entry.clone())? {
            Current::Rule(rule) => of_rule(*rule),
            Current::Guard(guard) => of_guard(*guard),
            Current::Kill(_) => return None,
        },
    };
    Some(v1::Object { kind: Some(kind) })
}
