//! Rolls back one rule, guard or queue, or everything, to an earlier revision, in a new revision.
//!
//! A rollback is a set of changes derived from the history and written like any set. For one resource it is a
//! put of the old version with the same checks.
//!
//! A rollback of everything is based on one revision and only written while the store is at that revision,
//! so no concurrent change is lost or kept. It restores what was in force, so guards cut its rules instead of
//! rejecting them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1::{self, rule_result};
use damper_store::writer::Proposal;
use tonic::Request;

use crate::api::history::object;
use crate::api::history::object::HistorySubject;
use crate::state::error::{ApiError, Current};
use crate::state::history;
use crate::state::history::KeyHistory;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;
use crate::write::chain_limit;
use crate::write::change_set::{ChangeSet, ChangeSetResult, ResourceChange, Written};
use crate::write::queue_jobs;
use crate::write::request::{CompletedWrite, WriteRequest, all_or, check_options, commit, stored_answer};
use crate::write::resource::{NewGuard, NewQueue, NewRule};

/// The most attempts to roll back everything after concurrent writes, if the request expects no revision.
const TRIES: usize = 8;

/// Rolls back one rule, guard or queue.
pub(crate) async fn one(
    writes: &Arc<Writes>,
    request: Request<v1::RollbackRequest>,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    let (mut asked, request) = WriteRequest::read("rollback", request, |request| request.options.take());
    let v1::RollbackRequest { key, to_revision, expected_revision, options: _ } = request;
    let mut faults = Faults::none();
    let to = check(to_revision, &mut asked.options, &mut faults);
    let subject = all_or(object::named(key).and_then(rolled_back).map_err(ApiError::Faults), faults)?;
    asked.permit([&subject])?;
    Rollback { of: Some(subject), to, expected: expected_revision, asked }.run(writes).await
}

/// Kills and tokens are not rolled back: an earlier kill is expired or was ended for a reason, and a revoked
/// token must stay invalid.
fn rolled_back(named: HistorySubject) -> Result<ResourceKey, Faults> {
    let mut faults = Faults::none();
    match named {
        HistorySubject::Subject(ResourceKey::Kill(pattern)) => faults.add(
            "key.kill",
            format!("kills are not rolled back ({pattern}): unkill ends it, kill sets it again"),
        ),
        HistorySubject::Jobs(queue) => {
            faults.add("key.jobs", format!("actions on the jobs of queue {queue} cannot be undone"));
        }
        HistorySubject::Token(id) => {
            faults.add("key.token", format!("tokens are not rolled back ({id}): create a new one"));
        }
        HistorySubject::Subject(subject) => return Ok(subject),
    }
    Err(faults)
}

/// Rolls back all rules, guards and queues; kills are not changed.
pub(crate) async fn all(
    writes: &Arc<Writes>,
    request: Request<v1::RollbackAllRequest>,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    let (mut asked, request) = WriteRequest::read("rollback all", request, |request| request.options.take());
    let v1::RollbackAllRequest { to_revision, expected_revision, options: _ } = request;
    let mut faults = Faults::none();
    if asked.options.reason.is_empty() {
        faults.add("options.reason", "is required");
    }
    let to = check(to_revision, &mut asked.options, &mut faults);
    faults.or(()).map_err(ApiError::Faults)?;
    Rollback { of: None, to, expected: expected_revision, asked }.run(writes).await
}

/// Checks the request, and sets a default reason.
fn check(to: Option<u64>, options: &mut v1::WriteOptions, faults: &mut Faults) -> u64 {
    check_options("options", options, faults);
    if to.is_none() {
        faults.add("to_revision", "is required");
    }
    let to = to.unwrap_or_default();
    if options.reason.is_empty() {
        options.reason = format!("rollback to revision {to}");
    }
    to
}

struct Rollback {
    /// `None` for everything.
    of: Option<ResourceKey>,
    to: u64,
    /// Expected revision of the resource, or of the store for a rollback of everything.
    expected: Option<u64>,
    asked: WriteRequest,
}

/// A resource at the earlier revision and now.
struct RollbackTarget {
    subject: ResourceKey,
    then: Option<v1::Object>,
    now: Option<v1::Object>,
}

/// The changes to make, with their results.
struct RollbackPlan {
    set: ChangeSet,
    outcome: Vec<rule_result::Change>,
}

impl Rollback {
    async fn run(&self, writes: &Arc<Writes>) -> Result<v1::ApplyRulesResponse, ApiError> {
        if let Some(first) = stored_answer(writes, &self.asked).await? {
            return self.answer_repeated(writes, &first).await;
        }
        let mut tries = 1;
        loop {
            let table = history::table_at(&writes.fleet.state, "to_revision", self.to).await?;
            let table = match self.expected_head() {
                Some(head) if head > table.revision() => at_head(writes, head).await?,
                _ => table,
            };
            match self.attempt(writes, &table).await {
                Err(ApiError::Moved { head }) if self.expected.is_none() && tries < TRIES => {
                    tries += 1;
                    writes.fleet.state.at_least(head).await?;
                }
                done => return done,
            }
        }
    }

    /// Rolls back from a snapshot. Errors if the store has moved on.
    async fn attempt(
        &self,
        writes: &Arc<Writes>,
        table: &Arc<Snapshot>,
    ) -> Result<v1::ApplyRulesResponse, ApiError> {
        let revision = table.revision();
        if self.expected_head().is_some_and(|head| head != revision) {
            return Err(ApiError::Moved { head: revision });
        }
        let RollbackPlan { set, outcome } = self.plan(writes, table, revision).await?;
        self.asked.permit(set.0.iter().map(|change| &change.subject))?;
        let guards = set.guards_after(table, &[]);
        if self.of.is_some() {
            set.check_guards(&guards, &outcome).map_err(ApiError::Faults)?;
        }
        // A rollback never deletes jobs.
        let keeps_jobs = v1::WriteOptions::default();
        queue_jobs::check_deleted(&*writes.jobs, &keeps_jobs, &set.deleted_queues(&[])).await?;
        let at = SystemTime::now();
        let edits = set.edits(&outcome, table, &self.asked.author(), at);
        let chain = chain_limit::check(writes, table, &edits).await?;
        chain.permit(&self.asked.options, |subject| set.path_of(subject)).map_err(ApiError::Faults)?;
        if self.asked.options.validate_only {
            set.try_out(writes, table, &outcome, &[])?;
            let author_owner = Some(self.asked.options.owner.clone());
            let set_result =
                ChangeSetResult { revision, changes: outcome, pruned: Vec::new(), chain, author_owner };
            return Arc::new(set).response(writes, table, set_result).await;
        }
        let expected_head = self.of.is_none().then_some(revision);
        let proposal = Proposal { expected_head, ..self.asked.proposal(at, edits) };
        let done = commit(writes, &self.asked, table, proposal).await?;
        if done.committed.repeated {
            return self.answer_repeated(writes, &done).await;
        }
        let revision = done.committed.revision;
        let author_owner = Some(self.asked.options.owner.clone());
        let set_result =
            ChangeSetResult { revision, changes: outcome, pruned: Vec::new(), chain, author_owner };
        Arc::new(set).response(writes, table, set_result).await
    }

    /// Answers a request that was committed before.
    async fn answer_repeated(
        &self,
        writes: &Arc<Writes>,
        CompletedWrite { committed, before, .. }: &CompletedWrite,
    ) -> Result<v1::ApplyRulesResponse, ApiError> {
        let RollbackPlan { set, outcome } = match self.plan(writes, before, before.revision()).await {
            // The rollback is done, but its changes are no longer kept.
            Err(ApiError::NoLongerKept { .. }) => {
                RollbackPlan { set: ChangeSet(Vec::new()), outcome: Vec::new() }
            }
            plan => plan?,
        };
        let edits = set.edits(&outcome, before, &self.asked.author(), SystemTime::now());
        let chain = chain_limit::check(writes, before, &edits).await?;
        let author_owner = Some(self.asked.options.owner.clone());
        let revision = committed.revision;
        let set_result =
            ChangeSetResult { revision, changes: outcome, pruned: Vec::new(), chain, author_owner };
        Arc::new(set).response(writes, before, set_result).await
    }

    fn expected_head(&self) -> Option<u64> {
        self.expected.filter(|_| self.of.is_none())
    }

    /// Returns the plan from a revision back; the snapshot is at that revision or later.
    async fn plan(&self, writes: &Writes, table: &Snapshot, upto: u64) -> Result<RollbackPlan, ApiError> {
        let wanted = |subject: &ResourceKey| match &self.of {
            Some(of) => of == subject,
            None => !matches!(subject, ResourceKey::Kill(_)),
        };
        let touched = {
            let _turn = writes.fleet.state.past.turn().await;
            history::touched(&*writes.fleet.state.store, self.to, upto, wanted).await?
        };
        let mut plan = RollbackPlan { set: ChangeSet(Vec::new()), outcome: Vec::new() };
        let mut faults = Faults::none();
        for RollbackTarget { subject, then, now } in self.targets(table, touched)? {
            let same = object::same(then.as_ref(), now.as_ref());
            let outcome = match (&then, &now) {
                (Some(_), Some(_)) if same => rule_result::Change::Unchanged,
                (Some(_), Some(_)) => rule_result::Change::Updated,
                (Some(_), None) => rule_result::Change::Created,
                (None, Some(_)) => rule_result::Change::Deleted,
                (None, None) => continue,
            };
            if same && self.of.is_none() {
                continue;
            }
            match self.change(subject, then) {
                Ok(change) => plan.set.0.push(change),
                Err(ApiError::Faults(found)) => faults.nest("", found),
                Err(error) => return Err(error),
            }
            plan.outcome.push(outcome);
        }
        match &self.of {
            Some(of) if plan.outcome.is_empty() => {
                let revision = self.to;
                let text = format!(
                    "nothing to restore: there is no {of}, and there was none at revision {revision}"
                );
                Err(ApiError::NotFound(text))
            }
            _ => faults.or(plan).map_err(ApiError::Faults),
        }
    }

    /// Returns what has changed since the revision; a single one also if it is unchanged.
    fn targets(
        &self,
        table: &Snapshot,
        touched: BTreeMap<ResourceKey, KeyHistory>,
    ) -> Result<Vec<RollbackTarget>, ApiError> {
        if let Some(of) = self.of.as_ref().filter(|of| !touched.contains_key(of)) {
            let now = Current::stored(table, of).map(v1::Object::from);
            return Ok(vec![RollbackTarget { subject: of.clone(), then: now.clone(), now }]);
        }
        let targets = touched.into_iter().map(|(subject, KeyHistory { before, after })| {
            let now = after.map(|entry| object::read(&subject, entry));
            let then = before.map(|entry| {
                let read = Current::read(&subject, entry).map(v1::Object::from);
                let (to, what) = (self.to, &subject);
                read.ok_or_else(|| ApiError::Damaged(format!("{what} as of revision {to} is unreadable")))
            });
            let then = then.transpose()?;
            Ok(RollbackTarget { subject, then, now })
        });
        targets.collect()
    }

    fn change(&self, subject: ResourceKey, then: Option<v1::Object>) -> Result<ResourceChange, ApiError> {
        use v1::object::Kind::{Guard, Queue, Rule};
        let path = if self.of.is_some() { String::new() } else { subject.to_string() };
        let change = match then.and_then(|then| then.kind) {
            Some(Rule(rule)) => {
                let written = NewRule::read(&path, Some(rule))?;
                ResourceChange::put(Written::Rule(Box::new(written)), path)
            }
            Some(Guard(guard)) => {
                let written = NewGuard::read(&path, Some(guard))?;
                ResourceChange::put(Written::Guard(Box::new(written)), path)
            }
            Some(Queue(queue)) => {
                let written = NewQueue::read(&path, Some(queue))?;
                ResourceChange::put(Written::Queue(Box::new(written)), path)
            }
            Some(v1::object::Kind::Kill(_) | v1::object::Kind::Token(_) | v1::object::Kind::Jobs(_))
            | None => ResourceChange::delete(subject, path),
        };
        let expected = self.expected.filter(|_| self.of.is_some());
        Ok(ResourceChange { expected, ..change })
    }
}

/// Returns the snapshot at the expected revision of the store, which is later than this replica's.
async fn at_head(writes: &Writes, head: u64) -> Result<Arc<Snapshot>, ApiError> {
    let newest = history::newest(&writes.fleet.state).await?;
    if head > newest {
        return Err(ApiError::Moved { head: newest });
    }
    writes.fleet.state.at_least(head).await
}
