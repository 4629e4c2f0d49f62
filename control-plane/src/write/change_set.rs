//! An atomic set of changes to rules, guards and queues: checked, tried, written in one revision, and
//! answered.
//!
//! An apply request contains its set; a rollback makes one from the history. Rules are checked against the
//! guards as they are after the set, in any order of the two.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::{Faults, Pattern};
use damper_net::limits::Limit;
use damper_proto::v1::{self, rule_result};
use damper_store::writer::{Committed, ProposedEdit};

use crate::state::error::ApiError;
use crate::state::guards::GuardTable;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::chain_limit::ChainCheck;
use crate::write::findings;
use crate::write::findings::{FindingList, Traffic};
use crate::write::ownership;
use crate::write::queue_jobs;
use crate::write::reach::ReachSurvey;
use crate::write::request::{check_expected, too_many};
use crate::write::resource::{NewGuard, NewQueue, NewRule};
use crate::write::{MAX_QUEUES, Writes};

/// The most results that are listed one by one.
const MAX_RESULTS: usize = 1000;

/// Changes to distinct subjects.
#[derive(Debug)]
pub(crate) struct ChangeSet(pub(crate) Vec<ResourceChange>);

/// The result of a set, or the expected result of a dry run.
pub(crate) struct ChangeSetResult {
    pub(crate) revision: u64,
    /// The result of each change, in the order of the set.
    pub(crate) changes: Vec<rule_result::Change>,
    /// Resources that were pruned.
    pub(crate) pruned: Vec<ResourceKey>,
    pub(crate) chain: ChainCheck,
    /// Owner named by the author of a single change; `None` if ownership was resolved before.
    pub(crate) author_owner: Option<String>,
}

/// A change of one rule, guard or queue.
#[derive(Debug)]
pub(crate) struct ResourceChange {
    pub(crate) subject: ResourceKey,
    /// `None` deletes the resource.
    pub(crate) put: Option<Written>,
    pub(crate) expected: Option<u64>,
    /// Path in the request, for faults.
    pub(crate) path: String,
    /// True if the resource names its owner.
    pub(crate) names_owner: bool,
}

/// A rule, guard or queue that may be stored.
#[derive(Debug)]
pub(crate) enum Written {
    Rule(Box<NewRule>),
    Guard(Box<NewGuard>),
    Queue(Box<NewQueue>),
}

impl ChangeSet {
    /// Returns the edits for the writer. An unchanged resource keeps its stored value.
    pub(crate) fn edits(
        &self,
        outcome: &[rule_result::Change],
        table: &Snapshot,
        author: &str,
        at: SystemTime,
    ) -> Vec<ProposedEdit> {
        self.0.iter().zip(outcome).map(|(change, outcome)| change.edit(*outcome, table, author, at)).collect()
    }

    /// Returns the guards as they are after the set and its prune.
    pub(crate) fn guards_after(&self, table: &Snapshot, pruned: &[ResourceKey]) -> GuardTable {
        let mut guards = table.guards().clone();
        for subject in pruned {
            if let ResourceKey::Guard(pattern) = subject {
                guards.remove(pattern);
            }
        }
        for change in &self.0 {
            match (&change.put, &change.subject) {
                (Some(Written::Guard(written)), _) => guards.put(Arc::new(written.stored())),
                (None, ResourceKey::Guard(pattern)) => guards.remove(pattern),
                _ => {}
            }
        }
        guards
    }

    /// Errors if a guard cuts a rule on all its routes.
    pub(crate) fn check_guards(
        &self,
        guards: &GuardTable,
        outcome: &[rule_result::Change],
    ) -> Result<(), Faults> {
        let mut faults = Faults::none();
        for (change, outcome) in self.0.iter().zip(outcome) {
            let Some(Written::Rule(written)) = &change.put else { continue };
            if *outcome != rule_result::Change::Unchanged
                && let Err(excess) = findings::check_guards(guards, &written.rule)
            {
                faults.nest(&change.path, excess);
            }
        }
        faults.or(())
    }

    /// Returns the queues that the set and its prune delete.
    pub(crate) fn deleted_queues(&self, pruned: &[ResourceKey]) -> Vec<String> {
        let deleted = self.0.iter().filter(|change| change.put.is_none()).map(|change| &change.subject);
        queue_jobs::queues(deleted.chain(pruned))
    }

    /// Errors if the writer would reject the set: revisions that do not match, and limits.
    pub(crate) fn try_out(
        &self,
        writes: &Writes,
        table: &Snapshot,
        outcome: &[rule_result::Change],
        pruned: &[ResourceKey],
    ) -> Result<(), ApiError> {
        let before = (table.len(), table.guards().len(), table.queues.size());
        let (mut rules, mut guards, mut queues) = before;
        let deleted = pruned.iter().map(|subject| (subject, rule_result::Change::Deleted));
        let changes = self.0.iter().map(|change| &change.subject).zip(outcome.iter().copied());
        for (subject, outcome) in changes.chain(deleted) {
            let count = match subject {
                ResourceKey::Rule(_) => &mut rules,
                ResourceKey::Guard(_) => &mut guards,
                ResourceKey::Queue(_) => &mut queues,
                // A set contains no kills.
                ResourceKey::Kill(_) => continue,
            };
            match outcome {
                rule_result::Change::Created => *count += 1,
                rule_result::Change::Deleted => *count -= 1,
                _ => {}
            }
        }
        for change in &self.0 {
            check_expected(table, &change.subject, change.expected)?;
        }
        let limits = [
            (Limit::Rules, before.0, rules, writes.limits.max_rules),
            (Limit::Guards, before.1, guards, writes.limits.max_guards),
            (Limit::Queues, before.2, queues, MAX_QUEUES),
        ];
        match limits.into_iter().find(|(_, before, after, most)| after > most && after > before) {
            Some((limit, _, after, most)) => Err(too_many(limit, after, most)),
            None => Ok(()),
        }
    }

    /// Returns the result of each change, from the current revision of its resource.
    pub(crate) fn outcome(&self, before: &Snapshot, committed: &Committed) -> Vec<rule_result::Change> {
        let revisions: HashMap<&str, Option<u64>> =
            committed.keys.iter().map(|(key, revision)| (key.as_str(), *revision)).collect();
        let written = |change: &ResourceChange| {
            let now = revisions.get(change.subject.key().as_str()).copied().flatten();
            !committed.unchanged && now == Some(committed.revision)
        };
        let outcome = |change: &ResourceChange| match (&change.put, before.revision_of(&change.subject)) {
            (None, Some(_)) => rule_result::Change::Deleted,
            (None, None) => rule_result::Change::Unchanged,
            (Some(_), _) if !written(change) => rule_result::Change::Unchanged,
            (Some(_), None) => rule_result::Change::Created,
            (Some(_), Some(_)) => rule_result::Change::Updated,
        };
        self.0.iter().map(outcome).collect()
    }

    /// Returns the path of a resource in the request; empty if it is not in the set.
    pub(crate) fn path_of(&self, subject: &ResourceKey) -> String {
        let change = self.0.iter().find(|change| change.subject == *subject);
        let part = match change.and_then(|change| change.put.as_ref()) {
            Some(Written::Rule(_)) => "policy",
            Some(Written::Guard(_)) => "ceiling",
            Some(Written::Queue(_)) | None => "",
        };
        let path = change.map_or("", |change| &change.path);
        [path, part].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }

    /// Returns the subjects that were written but are not in the set.
    pub(crate) fn not_named(&self, committed: &Committed) -> Vec<ResourceKey> {
        let named: HashSet<String> = self.0.iter().map(|change| change.subject.key()).collect();
        let others = committed.keys.iter().filter(|(key, _)| !named.contains(key));
        let mut subjects: Vec<ResourceKey> = others.filter_map(|(key, _)| ResourceKey::of_key(key)).collect();
        subjects.sort();
        subjects
    }

    /// Returns the response to a set. It visits all routes and clients for each listed change, so it runs off
    /// the runtime. It always runs to its end, because the set may be written already.
    pub(crate) async fn response(
        self: Arc<Self>,
        writes: &Arc<Writes>,
        before: &Arc<Snapshot>,
        set_result: ChangeSetResult,
    ) -> Result<v1::ApplyRulesResponse, ApiError> {
        let (writes, before) = (writes.clone(), before.clone());
        let worker = writes.fleet.state.worker.clone();
        worker.run_unqueued(move |_| Ok(self.answer(&writes, &before, &set_result))).await
    }

    fn answer(
        &self,
        writes: &Writes,
        before: &Snapshot,
        set_result: &ChangeSetResult,
    ) -> v1::ApplyRulesResponse {
        let ChangeSetResult { revision, changes: outcome, pruned, chain, author_owner } = set_result;
        let (revision, guards) = (*revision, &self.guards_after(before, pruned));
        let mut response = v1::ApplyRulesResponse { revision, ..Default::default() };
        // Pruned subjects are always listed.
        let room = MAX_RESULTS - pruned.len().min(MAX_RESULTS);
        let (survey, traffic) = (ReachSurvey::new(&writes.fleet), Traffic::new(&writes.fleet));
        let mut findings = FindingList::default();
        let mut cut_by = self.cut_by_its_guards(before, pruned);
        let mut unlisted = 0;
        for (change, result) in self.0.iter().zip(outcome) {
            let count = match result {
                rule_result::Change::Created => &mut response.created,
                rule_result::Change::Updated => &mut response.updated,
                rule_result::Change::Deleted => &mut response.deleted,
                rule_result::Change::Unchanged | rule_result::Change::Unspecified => &mut response.unchanged,
            };
            *count += 1;
            if response.results.len() == room {
                unlisted += 1;
                continue;
            }
            let reach = change.put.as_ref().and_then(|put| match put {
                Written::Rule(written) => Some(survey.reach(&written.rule)),
                Written::Guard(written) => Some(survey.reach_of_guard(written.guard.pattern())),
                Written::Queue(_) => None,
            });
            let mut found = chain.findings_of(&change.subject);
            let declared = author_owner.as_deref().filter(|_| *result != rule_result::Change::Unchanged);
            found.extend(declared.and_then(|declared| ownership::finding(before, &change.subject, declared)));
            match (&change.put, &reach) {
                (Some(Written::Rule(written)), Some(reach)) => {
                    found.extend(findings::of_rule(guards, &written.rule, &traffic, reach));
                    found.extend(findings::displaces(before, &written.rule));
                }
                (Some(Written::Guard(written)), Some(reach)) => {
                    found.extend(findings::of_guard(&written.guard, reach));
                    found.extend(cut_by.remove(written.guard.pattern()).unwrap_or_default());
                }
                (Some(Written::Queue(written)), _) => found.extend(findings::of_queue(&written.queue)),
                _ => {}
            }
            response.results.push(v1::RuleResult {
                reach,
                findings: findings.take(found),
                ..result_of(&change.subject, *result)
            });
        }
        response.deleted += u32::try_from(pruned.len()).unwrap_or(u32::MAX);
        let deleted = |subject: &ResourceKey| result_of(subject, rule_result::Change::Deleted);
        response.results.extend(pruned.iter().take(MAX_RESULTS).map(deleted));
        if let (Some(last), Some(rest)) = (response.results.last_mut(), findings.rest(unlisted)) {
            last.findings.push(rest);
        }
        response
    }

    /// Returns what the guards of the set cut from rules outside the set, by guard. Cuts of rules in the set
    /// are reported with those rules.
    fn cut_by_its_guards(
        &self,
        before: &Snapshot,
        pruned: &[ResourceKey],
    ) -> HashMap<Pattern, Vec<v1::Finding>> {
        let mut found: HashMap<Pattern, Vec<v1::Finding>> = HashMap::new();
        let mut guards = GuardTable::none();
        for change in &self.0 {
            if let Some(Written::Guard(written)) = &change.put {
                guards.put(Arc::new(written.stored()));
            }
        }
        if guards.len() == 0 {
            return found;
        }
        let own: HashSet<&ResourceKey> = self.0.iter().map(|change| &change.subject).chain(pruned).collect();
        for (pattern, stored) in before.iter() {
            let Some(rule) = &stored.rule else { continue };
            if own.contains(&ResourceKey::Rule(pattern.clone())) {
                continue;
            }
            for exceeded in guards.exceeded_by(rule) {
                let finding = findings::cut(&exceeded, rule);
                found.entry(exceeded.guard.pattern().clone()).or_default().push(finding);
            }
        }
        found
    }
}

/// Returns the result of a change without reach and findings.
fn result_of(subject: &ResourceKey, change: rule_result::Change) -> v1::RuleResult {
    let queue = if let ResourceKey::Queue(name) = subject { name.clone() } else { String::new() };
    v1::RuleResult {
        key: subject.pattern().map(Into::into),
        change: change.into(),
        guard: matches!(subject, ResourceKey::Guard(_)),
        queue,
        ..v1::RuleResult::default()
    }
}

impl ResourceChange {
    pub(crate) fn put(written: Written, path: String) -> Self {
        let subject = match &written {
            Written::Rule(rule) => rule.subject(),
            Written::Guard(guard) => guard.subject(),
            Written::Queue(queue) => queue.subject(),
        };
        Self { subject, put: Some(written), expected: None, path, names_owner: true }
    }

    pub(crate) fn delete(subject: ResourceKey, path: String) -> Self {
        Self { subject, put: None, expected: None, path, names_owner: false }
    }

    fn edit(
        &self,
        outcome: rule_result::Change,
        table: &Snapshot,
        author: &str,
        at: SystemTime,
    ) -> ProposedEdit {
        let stays = || table.value_of(&self.subject).filter(|_| outcome == rule_result::Change::Unchanged);
        let value = self.put.as_ref().map(|written| {
            let new = || match written {
                Written::Rule(rule) => rule.value(table, author, at),
                Written::Guard(guard) => guard.value(table, author, at),
                Written::Queue(queue) => queue.value(table, author, at),
            };
            stays().unwrap_or_else(new)
        });
        ProposedEdit { key: self.subject.key(), value, expected: self.expected }
    }
}
