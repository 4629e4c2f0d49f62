//! A set of changes to rules and guards, all or nothing, in one revision: judged, tried, written and answered.
//!
//! An apply brings its set with it, a rollback makes one from the history. Rules are judged by the guards as they
//! are after the set, whichever came first in it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::{Faults, Pattern};
use damper_proto::v1::{self, rule_result};

use crate::errors::Error;
use crate::judgement::{self, Findings};
use crate::reach::Survey;
use crate::requests::{check_expected, too_many};
use crate::shared::Shared;
use crate::table::{Guards, Subject, TableView};
use crate::writer::{Committed, ProposedEdit};
use crate::written::{WrittenGuard, WrittenRule};

/// The most results that are listed one by one.
const MAX_RESULTS: usize = 1000;

/// Changes of which no two have the same subject.
pub(crate) struct Set(pub(crate) Vec<Change>);

/// What becomes of one rule or guard.
pub(crate) struct Change {
    pub(crate) subject: Subject,
    /// None = the rule or guard is removed.
    pub(crate) put: Option<Written>,
    pub(crate) expected: Option<u64>,
    /// Where it stands in the request, for faults.
    pub(crate) path: String,
}

/// A rule or guard that may be stored.
pub(crate) enum Written {
    Rule(Box<WrittenRule>),
    Guard(Box<WrittenGuard>),
}

impl Set {
    /// What the writer is asked for.
    pub(crate) fn edits(&self, table: &TableView, author: &str, at: SystemTime) -> Vec<ProposedEdit> {
        self.0.iter().map(|change| change.edit(table, author, at)).collect()
    }

    /// The guards as they are when the set is in force.
    pub(crate) fn guards_after(&self, table: &TableView) -> Guards {
        let mut guards = table.guards().clone();
        for change in &self.0 {
            match (&change.put, &change.subject) {
                (Some(Written::Guard(written)), _) => guards.put(Arc::new(written.stored())),
                (None, Subject::Guard(pattern)) => guards.remove(pattern),
                _ => {}
            }
        }
        guards
    }

    /// Refuses rules that are never in force as they stand.
    pub(crate) fn judge(&self, guards: &Guards, table: &TableView) -> Result<(), Faults> {
        let mut faults = Faults::none();
        for change in &self.0 {
            let Some(Written::Rule(written)) = &change.put else { continue };
            if written.unchanged(table).is_none()
                && let Err(excess) = judgement::refuse(guards, &written.rule)
            {
                faults.nest(&change.path, excess);
            }
        }
        faults.or(())
    }

    /// What would become of each change.
    pub(crate) fn try_out(
        &self,
        shared: &Shared,
        table: &TableView,
    ) -> Result<Vec<rule_result::Change>, Error> {
        let before = (table.len(), table.guards().len());
        let (mut rules, mut guards) = before;
        let mut outcome = Vec::with_capacity(self.0.len());
        for change in &self.0 {
            check_expected(table, &change.subject, change.expected)?;
            let result = change.against(table);
            let count = match change.subject {
                Subject::Rule(_) => &mut rules,
                Subject::Guard(_) => &mut guards,
            };
            match result {
                rule_result::Change::Created => *count += 1,
                rule_result::Change::Deleted => *count -= 1,
                _ => {}
            }
            outcome.push(result);
        }
        let limits = [
            ("rules", before.0, rules, shared.settings.max_rules),
            ("guards", before.1, guards, shared.settings.max_guards),
        ];
        match limits.into_iter().find(|(_, before, after, limit)| after > limit && after > before) {
            Some((what, _, after, limit)) => Err(too_many(what, after, limit)),
            None => Ok(outcome),
        }
    }

    /// What became of each change, by the revision that its rule or guard has now.
    pub(crate) fn outcome(&self, before: &TableView, committed: &Committed) -> Vec<rule_result::Change> {
        let revisions: HashMap<&str, Option<u64>> =
            committed.keys.iter().map(|(key, revision)| (key.as_str(), *revision)).collect();
        let written = |change: &Change| {
            let now = revisions.get(change.subject.key().as_str()).copied().flatten();
            !committed.unchanged && now == Some(committed.revision)
        };
        let outcome = |change: &Change| match (&change.put, before.revision_of(&change.subject)) {
            (None, _) => change.against(before),
            (Some(_), _) if !written(change) => rule_result::Change::Unchanged,
            (Some(_), None) => rule_result::Change::Created,
            (Some(_), Some(_)) => rule_result::Change::Updated,
        };
        self.0.iter().map(outcome).collect()
    }

    pub(crate) fn response(
        &self,
        shared: &Shared,
        revision: u64,
        before: &TableView,
        guards: &Guards,
        outcome: &[rule_result::Change],
    ) -> v1::ApplyRulesResponse {
        let mut response = v1::ApplyRulesResponse { revision, ..Default::default() };
        let survey = Survey::of(shared);
        let mut findings = Findings::default();
        let mut cut_by = self.cut_by_its_guards(before);
        for (change, result) in self.0.iter().zip(outcome) {
            let count = match result {
                rule_result::Change::Created => &mut response.created,
                rule_result::Change::Updated => &mut response.updated,
                rule_result::Change::Deleted => &mut response.deleted,
                rule_result::Change::Unchanged | rule_result::Change::Unspecified => &mut response.unchanged,
            };
            *count += 1;
            let cuts: Vec<v1::Finding> = match &change.put {
                Some(Written::Rule(written)) => judgement::cuts(guards, &written.rule).collect(),
                Some(Written::Guard(written)) => cut_by.remove(written.guard.pattern()).unwrap_or_default(),
                None => Vec::new(),
            };
            if response.results.len() == MAX_RESULTS {
                findings.leave_out(cuts.len());
                continue;
            }
            response.results.push(v1::RuleResult {
                key: Some(change.subject.pattern().into()),
                change: (*result).into(),
                reach: change.put.as_ref().map(|put| match put {
                    Written::Rule(written) => survey.reach(&written.rule),
                    Written::Guard(written) => survey.reach_of_guard(written.guard.pattern()),
                }),
                findings: findings.take(cuts),
                guard: matches!(change.subject, Subject::Guard(_)),
            });
        }
        if let (Some(last), Some(rest)) = (response.results.last_mut(), findings.rest()) {
            last.findings.push(rest);
        }
        response
    }

    /// What the set's guards cut from rules that are not in it, by guard. What they cut from the set's own is told
    /// with those.
    fn cut_by_its_guards(&self, before: &TableView) -> HashMap<Pattern, Vec<v1::Finding>> {
        let mut found: HashMap<Pattern, Vec<v1::Finding>> = HashMap::new();
        let mut guards = Guards::none();
        for change in &self.0 {
            if let Some(Written::Guard(written)) = &change.put {
                guards.put(Arc::new(written.stored()));
            }
        }
        if guards.len() == 0 {
            return found;
        }
        let own: HashSet<&Subject> = self.0.iter().map(|change| &change.subject).collect();
        for (pattern, stored) in before.iter() {
            let Some(rule) = &stored.rule else { continue };
            if own.contains(&Subject::Rule(pattern.clone())) {
                continue;
            }
            for exceeded in guards.exceeded_by(rule) {
                let finding = judgement::finding(&exceeded, rule);
                found.entry(exceeded.guard.pattern().clone()).or_default().push(finding);
            }
        }
        found
    }
}

impl Change {
    pub(crate) fn put(written: Written, path: String) -> Self {
        let subject = match &written {
            Written::Rule(rule) => rule.subject(),
            Written::Guard(guard) => guard.subject(),
        };
        Self { subject, put: Some(written), expected: None, path }
    }

    pub(crate) fn delete(subject: Subject, path: String) -> Self {
        Self { subject, put: None, expected: None, path }
    }

    fn edit(&self, table: &TableView, author: &str, at: SystemTime) -> ProposedEdit {
        let value = self.put.as_ref().map(|written| match written {
            Written::Rule(rule) => rule.value(table, author, at),
            Written::Guard(guard) => guard.value(table, author, at),
        });
        ProposedEdit { key: self.subject.key(), value, expected: self.expected }
    }

    /// What the change makes of a table.
    fn against(&self, table: &TableView) -> rule_result::Change {
        let same = self.put.as_ref().map(|written| match written {
            Written::Rule(rule) => rule.unchanged(table).is_some(),
            Written::Guard(guard) => guard.unchanged(table).is_some(),
        });
        match (same, table.revision_of(&self.subject)) {
            (Some(_), None) => rule_result::Change::Created,
            (Some(false), Some(_)) => rule_result::Change::Updated,
            (None, Some(_)) => rule_result::Change::Deleted,
            (Some(true), Some(_)) | (None, None) => rule_result::Change::Unchanged,
        }
    }
}
