//! Reads the requests of the admin API and commits writes, the same for rules, guards and queues.
//!
//! Input is parsed into the engine's types first, with all its faults. A write is proposed to the writer and
//! answered once the snapshot of this replica shows it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Faults, Pattern, job};
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Limit;
use damper_proto::{convert, v1};
use damper_store::writer::{Committed, EditPlanner, EntriesView, Proposal, ProposeError, ProposedEdit};
use tonic::Request;

use crate::auth::caller::Caller;
use crate::auth::limits::identity;
use crate::state::error::denied::AccessDenied;
use crate::state::error::{ApiError, Current};
use crate::state::resource_key::{KILLS, ResourceKey};
use crate::state::snapshot::Snapshot;
use crate::state::tokens::role::Role;
use crate::write::Writes;
use crate::write::digest::Digest;

const MAX_REQUEST_ID_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 1024;
const MAX_AUTHOR_BYTES: usize = 255;
/// Longest wait for the snapshot after a write is durable.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// Reads a required key.
pub(crate) fn read_key(path: &str, key: Option<&v1::Pattern>) -> Result<Pattern, Faults> {
    let mut faults = Faults::none();
    let Some(key) = key else {
        faults.add(path, "is required");
        return Err(faults);
    };
    convert::pattern(key).map_err(|inner| {
        faults.nest(path, inner);
        faults
    })
}

/// Reads the name of a queue.
pub(crate) fn read_queue_name(path: &str, name: &str) -> Result<ResourceKey, Faults> {
    let mut faults = Faults::none();
    job::check_queue_name(path, name, &mut faults);
    faults.or(ResourceKey::Queue(name.to_owned()))
}

/// The most additional keys that one request may name.
const MAX_ALSO: usize = 31;

/// Reads the keys of a request that may name several: `key` and all in `also`. Errors if a key appears twice.
pub(crate) fn read_keys(key: Option<&v1::Pattern>, also: &[v1::Pattern]) -> Result<Vec<Pattern>, Faults> {
    let mut faults = Faults::none();
    if also.len() > MAX_ALSO {
        faults.add("also", format!("has {} keys, at most {MAX_ALSO} are allowed", also.len()));
        return Err(faults);
    }
    let paths = std::iter::once("key".to_owned()).chain((0..also.len()).map(|n| format!("also[{n}]")));
    let mut keys = Vec::new();
    for (path, key) in paths.zip(std::iter::once(key).chain(also.iter().map(Some))) {
        match read_key(&path, key) {
            Ok(key) if keys.contains(&key) => faults.add(path, format!("repeats {key}")),
            Ok(key) => keys.push(key),
            Err(inner) => faults.nest("", inner),
        }
    }
    if faults.is_empty() { Ok(keys) } else { Err(faults) }
}

/// Returns subjects as one line, for the log.
pub(crate) fn listed(subjects: &[ResourceKey]) -> String {
    subjects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Adds the faults of the options of a write.
pub(crate) fn check_options(path: &str, options: &v1::WriteOptions, faults: &mut Faults) {
    let v1::WriteOptions { request_id, reason, author, owner, .. } = options;
    let mut owner_faults = Faults::none();
    damper_core::guard::check_owner(owner, &mut owner_faults);
    faults.nest(path, owner_faults);
    let bounded = [
        ("request_id", request_id, MAX_REQUEST_ID_BYTES),
        ("reason", reason, MAX_REASON_BYTES),
        ("author", author, MAX_AUTHOR_BYTES),
    ];
    if options.force && reason.is_empty() {
        faults.add(format!("{path}.reason"), "is required with force");
    }
    for (field, text, limit) in bounded {
        if text.len() > limit {
            let problem = format!("has {} bytes, at most {limit} are allowed", text.len());
            faults.add(format!("{path}.{field}"), problem);
        }
    }
}

/// Joins the faults of the parts of a request.
pub(crate) fn all_or<T>(parts: Result<T, ApiError>, options: Faults) -> Result<T, ApiError> {
    match parts {
        Ok(value) if options.is_empty() => Ok(value),
        Ok(_) => Err(ApiError::Faults(options)),
        Err(ApiError::Faults(mut faults)) => {
            faults.nest("", options);
            Err(ApiError::Faults(faults))
        }
        Err(other) => Err(other),
    }
}

/// A write request with its options and its author.
#[derive(Clone, Debug)]
pub(crate) struct WriteRequest {
    pub(crate) options: v1::WriteOptions,
    digest: Digest,
    by: Requester,
    /// Longest time that the writer may be busy with other writes before this one is rejected.
    taken_within: Duration,
}

/// The caller of a request and its address.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    pub(crate) caller: Caller,
    /// Address of the caller; empty for the server itself or if unknown.
    pub(crate) address: String,
    /// The identity whose limits apply; empty for the server itself.
    identity: String,
}

impl Requester {
    pub(crate) fn from_request<T>(request: &Request<T>) -> Self {
        let peer = request.extensions().get::<ConnectionInfo>();
        let address = peer.map(|peer| peer.address.to_string()).unwrap_or_default();
        let caller = Caller::of(request);
        let identity = peer.map(|peer| identity(&caller, peer)).unwrap_or_default();
        Self { caller, address, identity }
    }

    /// Returns the server itself as the requester.
    fn server() -> Self {
        Self { caller: Caller::AuthDisabled, address: String::new(), identity: String::new() }
    }
}

impl WriteRequest {
    /// Splits a request into options and message. The digest of `operation` and message identifies a repeated
    /// request.
    pub(crate) fn read<T: prost::Message>(
        operation: &str,
        request: Request<T>,
        options: impl FnOnce(&mut T) -> Option<v1::WriteOptions>,
    ) -> (Self, T) {
        let by = Requester::from_request(&request);
        let mut request = request.into_inner();
        let mut digest = Digest::new();
        digest.add(operation.as_bytes());
        digest.add(&request.encode_to_vec());
        let options = options(&mut request).unwrap_or_default();
        (Self::of_parts(options, digest, by), request)
    }

    /// Creates a write from the parts of a streamed request.
    pub(crate) fn of_parts(mut options: v1::WriteOptions, digest: Digest, by: Requester) -> Self {
        if options.author.is_empty() {
            by.caller.name().clone_into(&mut options.author);
        }
        Self { options, digest, by, taken_within: Duration::MAX }
    }

    /// Sets the longest time that the writer may be busy, for a write that has an alternative.
    pub(crate) fn taken_within(self, taken_within: Duration) -> Self {
        Self { taken_within, ..self }
    }

    /// Creates a write of the server itself.
    pub(crate) fn internal(options: v1::WriteOptions) -> Self {
        Self::of_parts(options, Digest::new(), Requester::server())
    }

    /// Returns the authenticated name of the caller.
    pub(crate) fn principal(&self) -> String {
        self.by.caller.principal()
    }

    /// Returns the author to show: the authenticated name, with ` (as NAME)` if the request declares another
    /// one. Without authentication it is the declared name.
    pub(crate) fn author(&self) -> String {
        let (proven, declared) = (self.by.caller.name(), &self.options.author);
        match proven {
            "" => declared.clone(),
            _ if declared.is_empty() || declared == proven => proven.to_owned(),
            _ => format!("{proven} (as {declared})"),
        }
    }

    /// Checks that the caller may change these subjects with the requested options. A commit checks again; a
    /// dry run is checked only here.
    pub(crate) fn permit<'s>(
        &self,
        subjects: impl IntoIterator<Item = &'s ResourceKey>,
    ) -> Result<(), ApiError> {
        self.permit_options()?;
        subjects.into_iter().try_for_each(|subject| self.by.caller.permit_write(subject))?;
        Ok(())
    }

    fn permit_options(&self) -> Result<(), AccessDenied> {
        let v1::WriteOptions { force, take_over, prune, purge_jobs, .. } = &self.options;
        let is_everything = *prune == i32::from(v1::Prune::Everything);
        if *force || *take_over || *purge_jobs || is_everything {
            self.by.caller.permit_role(Role::Operator)?;
        }
        if is_everything { self.by.caller.permit_everything("what is not in the set") } else { Ok(()) }
    }

    /// Checks keys of the store. Keys of other kinds are only written by methods that require the role admin,
    /// or operator for actions on jobs.
    fn permit_keys<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Result<(), ApiError> {
        if matches!(self.by.caller, Caller::AuthDisabled) {
            return Ok(());
        }
        let subjects: Vec<ResourceKey> = keys.into_iter().filter_map(ResourceKey::of_key).collect();
        self.permit(&subjects)
    }

    /// Logs a change of rules, guards and queues. Writes of kills and tokens have log lines of their own.
    fn log(&self, first: Option<(ResourceKey, bool)>, others: usize, revision: u64) {
        let Some((first, is_removed)) = first else { return };
        let v1::WriteOptions { author, reason, .. } = &self.options;
        let (what, principal) = (if is_removed { "deleted" } else { "written" }, self.principal());
        tracing::info!(%first, others, reason, author, principal, revision, "{what}");
    }

    /// Returns a proposal of edits, valid at any revision of the store.
    pub(crate) fn proposal(&self, at: SystemTime, edits: Vec<ProposedEdit>) -> Proposal {
        Proposal {
            author: self.options.author.clone(),
            reason: self.options.reason.clone(),
            peer: self.by.address.clone(),
            principal: self.by.caller.principal(),
            request_id: self.options.request_id.clone(),
            request_digest: self.digest.value(),
            at,
            expected_head: None,
            edits,
            planner: None,
        }
    }
}

/// A committed write, from this request or from an earlier one with the same id.
pub(crate) struct CompletedWrite {
    pub(crate) committed: Committed,
    /// The snapshot that the write was decided on; of a repeated request the one right before it.
    pub(crate) before: Arc<Snapshot>,
    /// The snapshot right after the write or a little later; of a repeated request never later.
    pub(crate) after: Arc<Snapshot>,
}

/// Commits edits that were decided on a snapshot and waits until the snapshot of this replica shows them.
pub(crate) async fn write(
    writes: &Writes,
    asked: &WriteRequest,
    before: &Arc<Snapshot>,
    at: SystemTime,
    edits: Vec<ProposedEdit>,
) -> Result<CompletedWrite, ApiError> {
    commit(writes, asked, before, asked.proposal(at, edits)).await
}

/// Commits a proposal and waits until the snapshot of this replica shows it.
pub(crate) async fn commit(
    writes: &Writes,
    asked: &WriteRequest,
    before: &Arc<Snapshot>,
    mut proposal: Proposal,
) -> Result<CompletedWrite, ApiError> {
    asked.by.caller.check_in_force(&writes.fleet.table(), SystemTime::now())?;
    asked.permit_keys(proposal.edits.iter().map(|edit| edit.key.as_str()))?;
    if !asked.by.identity.is_empty() {
        // Kills and deletions do not count against the limit.
        let counted = proposal.edits.iter().filter(|edit| !edit.key.starts_with(KILLS));
        let bytes = counted.filter_map(|edit| Some(edit.key.len() + edit.value.as_ref()?.len())).sum();
        writes.limiter.admit_bytes(&asked.by.identity, bytes)?;
    }
    if let Some(planner) = proposal.planner.take() {
        proposal.planner = Some(Arc::new(AuthorizedEdits { planner, asked: asked.clone() }));
    }
    let mut resources = proposal.edits.iter().filter_map(|edit| {
        let subject = ResourceKey::of_key(&edit.key)?;
        (!matches!(subject, ResourceKey::Kill(_))).then_some((subject, edit.value.is_none()))
    });
    let (first, others) = (resources.next(), resources.count());
    let committed = match writes.fleet.state.writer.propose_within(asked.taken_within, proposal).await {
        Err(ProposeError::PlannerRejected { entries }) => {
            asked.permit_keys(entries.iter().map(|(key, _)| key.as_str()))?;
            return Err(ApiError::PlannerRejected(entries));
        }
        done => done?,
    };
    if !committed.repeated && !committed.unchanged {
        asked.log(first, others, committed.revision);
    }
    let after = match writes.fleet.state.table_at(committed.revision, REACHED_WITHIN).await {
        Ok(table) => table,
        Err(error) => {
            // The write is durable, so an error would be wrong.
            let revision = committed.revision;
            tracing::warn!(%error, revision, "a write is stored, but this replica has not read it back yet; the next reads may be stale");
            writes.fleet.table()
        }
    };
    if !committed.repeated {
        return Ok(CompletedWrite { committed, before: before.clone(), after });
    }
    let committed = with_keys(writes, committed).await?;
    let found = if committed.unchanged { committed.revision } else { committed.revision - 1 };
    let before = crate::state::history::snapshot_at(&writes.fleet.state, &after, found).await?;
    let after = crate::state::history::snapshot_at(&writes.fleet.state, &after, committed.revision).await?;
    Ok(CompletedWrite { committed, before, after })
}

/// Completes a repeated answer whose keys the writer no longer remembers. The keys come from the history, as
/// far as it reaches.
async fn with_keys(writes: &Writes, mut committed: Committed) -> Result<Committed, ApiError> {
    if committed.unchanged || !committed.keys.is_empty() {
        return Ok(committed);
    }
    let revision = committed.revision;
    let _turn = writes.fleet.state.past.turn().await;
    let changes = match writes.fleet.state.store.changes(revision - 1, revision).await {
        Err(damper_store::StoreError::Compacted { .. }) => Vec::new(),
        changes => changes?,
    };
    let edits = changes.into_iter().flat_map(|change| change.edits);
    committed.keys = edits.map(|edit| (edit.key, edit.value.map(|_| revision))).collect();
    Ok(committed)
}

/// An edit planner whose edits are limited to those that the requester may make.
#[derive(Debug)]
struct AuthorizedEdits {
    planner: Arc<dyn EditPlanner>,
    asked: WriteRequest,
}

impl EditPlanner for AuthorizedEdits {
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
        let edits = self.planner.edits(entries)?;
        let keys = edits.iter().map(|edit| edit.key.as_str());
        let denied: Vec<String> =
            keys.filter(|key| self.asked.permit_keys([*key]).is_err()).map(str::to_owned).collect();
        if denied.is_empty() { Ok(edits) } else { Err(denied) }
    }
}

/// Returns the stored answer of a repeated request id; `None` if the id is new. Writes nothing. Called before
/// the request is checked, because it may have been valid only at the time of the first request.
pub(crate) async fn stored_answer(
    writes: &Writes,
    asked: &WriteRequest,
) -> Result<Option<CompletedWrite>, ApiError> {
    if asked.options.request_id.is_empty() || asked.options.validate_only {
        return Ok(None);
    }
    // The store never has this revision, so only an earlier write can be answered.
    let never = Some(u64::MAX);
    let proposal = Proposal { expected_head: never, ..asked.proposal(SystemTime::now(), Vec::new()) };
    match commit(writes, asked, &writes.fleet.table(), proposal).await {
        Ok(done) => Ok(Some(done)),
        Err(ApiError::Moved { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks an expected revision against a snapshot, for a dry run.
pub(crate) fn check_expected(
    table: &Snapshot,
    subject: &ResourceKey,
    expected: Option<u64>,
) -> Result<(), ApiError> {
    let revision = table.revision_of(subject).unwrap_or(0);
    if expected.is_none_or(|expected| expected == revision) {
        return Ok(());
    }
    Err(ApiError::Conflict { subject: subject.to_string(), current: Current::stored(table, subject) })
}

/// Returns the error for more resources of a kind than the limit allows.
pub(crate) fn too_many(limit: Limit, count: usize, most: usize) -> ApiError {
    let what = limit.name();
    ApiError::too_large(limit, format!("{count} {what} exceed the limit of {most}"))
}
