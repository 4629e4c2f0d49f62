//! A set of changes, all or nothing, in one revision.
//!
//! The set arrives as a stream and is counted while it does, so that a set that is too large is refused before
//! it fills the memory. Every change is read at once; what is wrong anywhere is told together at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Faults, Pattern};
use damper_proto::v1::{self, apply_rules_request, rule_change, rule_result};
use prost::Message as _;
use tonic::Streaming;

use super::reach::Survey;
use super::{WrittenRule, check_expected, check_options, read_key, read_rule, too_many, value_of, write};
use crate::errors::Error;
use crate::paging::Digest;
use crate::shared::Shared;
use crate::table::{self, TableView};
use crate::writer::{Committed, ProposedEdit};

/// How long the next message of a set may take.
const NEXT_WITHIN: Duration = Duration::from_secs(30);
/// The most results that are listed one by one.
const MAX_RESULTS: usize = 1000;
/// Reading goes on after faults, so that all are told; but not for ever.
const MAX_FAULTS: usize = 1000;

/// A set as it was read.
struct Set {
    options: v1::WriteOptions,
    changes: Vec<Change>,
    digest: Digest,
}

struct Change {
    pattern: Pattern,
    /// None = the rule is removed.
    put: Option<WrittenRule>,
    expected: Option<u64>,
}

type Requests = Streaming<v1::ApplyRulesRequest>;

pub(super) async fn apply(shared: &Arc<Shared>, requests: Requests) -> Result<v1::ApplyRulesResponse, Error> {
    let set = tokio::select! {
        set = Set::read(shared, requests) => set?,
        () = shared.stopping.cancelled() => return Err(Error::unavailable("the server is stopping")),
    };
    let before = shared.table();
    if set.options.validate_only {
        let outcome = set.try_out(shared, &before)?;
        return Ok(set.response(shared, before.revision(), outcome));
    }
    let at = SystemTime::now();
    let edit = |change: &Change| ProposedEdit {
        key: table::key_of(&change.pattern),
        value: change.put.as_ref().map(|written| value_of(&before, written, &set.options, at)),
        expected: change.expected,
    };
    let edits = set.changes.iter().map(edit).collect();
    let (committed, _) = write(shared, &set.options, set.digest, at, edits).await?;
    let outcome = set.outcome(&before, &committed);
    Ok(set.response(shared, committed.revision, outcome))
}

impl Set {
    async fn read(shared: &Shared, mut requests: Requests) -> Result<Self, Error> {
        let first = next(&mut requests).await?;
        let Some(apply_rules_request::Kind::Header(options)) = first.and_then(|request| request.kind) else {
            return Err(Error::fault("header", "must be the first message"));
        };
        let mut reading = Reading { faults: Faults::none(), seen: HashMap::new(), too_large: None };
        check_options("header", &options, &mut reading.faults);
        let mut digest = Digest::new();
        digest.add(b"apply");
        digest.add(&options.encode_to_vec());
        let (mut changes, mut bytes, mut place) = (Vec::new(), 0, 0);
        while let Some(request) = next(&mut requests).await? {
            let encoded = request.encode_to_vec();
            bytes += encoded.len();
            digest.add(&encoded);
            let limits = (shared.settings.max_apply_bytes, shared.settings.max_rules);
            if bytes > limits.0 {
                return Err(Error::TooLarge(format!("the set has more than {} bytes", limits.0)));
            }
            if place >= limits.1 {
                return Err(Error::TooLarge(format!("the set has more than {} changes", limits.1)));
            }
            changes.extend(reading.change(place, request.kind));
            place += 1;
            if reading.faults.len() >= MAX_FAULTS {
                break;
            }
        }
        if !reading.faults.is_empty() {
            return Err(Error::Faults(reading.faults));
        }
        match reading.too_large {
            Some(error) => Err(error),
            None => Ok(Self { options, changes, digest }),
        }
    }

    /// What would become of each change.
    fn try_out(&self, shared: &Shared, table: &TableView) -> Result<Vec<rule_result::Change>, Error> {
        let mut rules = table.len();
        let mut outcome = Vec::with_capacity(self.changes.len());
        for change in &self.changes {
            check_expected(table, &change.pattern, change.expected)?;
            let result = change.against(table);
            match result {
                rule_result::Change::Created => rules += 1,
                rule_result::Change::Deleted => rules -= 1,
                _ => {}
            }
            outcome.push(result);
        }
        match rules > shared.settings.max_rules && rules > table.len() {
            true => Err(too_many(rules, shared.settings.max_rules)),
            false => Ok(outcome),
        }
    }

    /// What became of each change, by the revision that its rule has now.
    fn outcome(&self, before: &TableView, committed: &Committed) -> Vec<rule_result::Change> {
        let revisions: HashMap<&str, Option<u64>> =
            committed.keys.iter().map(|(key, revision)| (key.as_str(), *revision)).collect();
        let written = |change: &Change| {
            let now = revisions.get(table::key_of(&change.pattern).as_str()).copied().flatten();
            !committed.unchanged && now == Some(committed.revision)
        };
        let outcome = |change: &Change| match (&change.put, before.stored(&change.pattern)) {
            (None, _) => change.against(before),
            (Some(_), _) if !written(change) => rule_result::Change::Unchanged,
            (Some(_), None) => rule_result::Change::Created,
            (Some(_), Some(_)) => rule_result::Change::Updated,
        };
        self.changes.iter().map(outcome).collect()
    }

    fn response(
        &self,
        shared: &Shared,
        revision: u64,
        outcome: Vec<rule_result::Change>,
    ) -> v1::ApplyRulesResponse {
        let mut response = v1::ApplyRulesResponse { revision, ..Default::default() };
        let survey = Survey::of(shared);
        for (change, result) in self.changes.iter().zip(outcome) {
            let count = match result {
                rule_result::Change::Created => &mut response.created,
                rule_result::Change::Updated => &mut response.updated,
                rule_result::Change::Deleted => &mut response.deleted,
                rule_result::Change::Unchanged | rule_result::Change::Unspecified => &mut response.unchanged,
            };
            *count += 1;
            if let Some(written) = change.put.as_ref().filter(|_| response.results.len() < MAX_RESULTS) {
                response.results.push(v1::RuleResult {
                    key: Some((&change.pattern).into()),
                    change: result.into(),
                    reach: Some(survey.reach(&written.rule)),
                });
            }
        }
        response
    }
}

impl Change {
    /// What the change makes of a table.
    fn against(&self, table: &TableView) -> rule_result::Change {
        match (&self.put, table.stored(&self.pattern)) {
            (Some(_), None) => rule_result::Change::Created,
            (Some(written), Some(stored)) if written.wire.policy != stored.wire.policy => {
                rule_result::Change::Updated
            }
            (None, Some(_)) => rule_result::Change::Deleted,
            (Some(_), Some(_)) | (None, None) => rule_result::Change::Unchanged,
        }
    }
}

/// What was found while reading.
struct Reading {
    faults: Faults,
    /// Where each key was first.
    seen: HashMap<Pattern, usize>,
    too_large: Option<Error>,
}

impl Reading {
    fn change(&mut self, place: usize, kind: Option<apply_rules_request::Kind>) -> Option<Change> {
        let path = format!("changes[{place}]");
        let change = match kind {
            Some(apply_rules_request::Kind::Change(change)) => change,
            Some(apply_rules_request::Kind::Header(_)) => {
                self.faults.add(path, "a header may only be the first message");
                return None;
            }
            None => {
                self.faults.add(path, "must be given");
                return None;
            }
        };
        let expected = change.expected_revision;
        let read = match change.kind {
            Some(rule_change::Kind::Put(rule)) => {
                read_rule(&format!("{path}.put"), Some(rule)).map(|written| Change {
                    pattern: written.rule.pattern().clone(),
                    put: Some(written),
                    expected,
                })
            }
            Some(rule_change::Kind::Delete(key)) => read_key(&format!("{path}.delete"), Some(&key))
                .map(|pattern| Change { pattern, put: None, expected })
                .map_err(Error::Faults),
            None => Err(Error::fault(&path, "put or delete must be given")),
        };
        match read {
            Ok(change) => self.unless_twice(place, &path, change),
            Err(Error::Faults(faults)) => {
                self.faults.nest("", faults);
                None
            }
            Err(error) => {
                self.too_large.get_or_insert(error);
                None
            }
        }
    }

    fn unless_twice(&mut self, place: usize, path: &str, change: Change) -> Option<Change> {
        if let Some(first) = self.seen.insert(change.pattern.clone(), place) {
            let problem = format!("{} is also the key of changes[{first}]", change.pattern);
            self.faults.add(path, problem);
            return None;
        }
        Some(change)
    }
}

async fn next(requests: &mut Requests) -> Result<Option<v1::ApplyRulesRequest>, Error> {
    match tokio::time::timeout(NEXT_WITHIN, requests.message()).await {
        Ok(message) => message.map_err(Error::Unread),
        Err(_) => Err(Error::TooLate(NEXT_WITHIN)),
    }
}
