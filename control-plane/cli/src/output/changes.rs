//! Filter and table of the history.

use std::time::SystemTime;

use clap::{Args, ValueEnum};
use damper_proto::v1::{self, object, object_key};

use crate::error::CliError;
use crate::input::filter::NameArgs;
use crate::input::key;
use crate::input::manifests::ManifestItem;
use crate::output::figures::{age, now};
use crate::output::{Align, Table};

/// Filter of the history.
#[derive(Args, Debug)]
pub(crate) struct ChangesArgs {
    /// Only changes of the rule and guard with exactly this key
    #[arg(num_args = 4, value_names = ["CALLER", "CLUSTER", "CALLEE", "METHOD"],
          conflicts_with_all = ["caller", "cluster", "callee", "method", "text"])]
    key: Vec<String>,
    #[command(flatten)]
    names: NameArgs,
    /// List only changes of this kind
    #[arg(long)]
    kind: Option<Kind>,
    /// List only changes by this author
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    by: String,
    /// List only changes after a time (2026-07-01T12:00:00Z) or newer than an age (2h)
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<SystemTime>,
    /// List only changes before a time (2026-07-01T12:00:00Z) or older than an age (2h)
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    until: Option<SystemTime>,
    /// List only changes with this revision or a later one
    #[arg(long, value_name = "REV", default_value_t = 0, hide_default_value = true)]
    min_revision: u64,
    /// List only changes with this revision or an earlier one
    #[arg(long, value_name = "REV", default_value_t = 0, hide_default_value = true)]
    max_revision: u64,
}

/// Kind of a changed resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Rules
    Rule,
    /// Guards
    Guard,
    /// Kill switches
    Kill,
    /// Tokens
    Token,
    /// Queues
    Queue,
    /// Actions of operators on jobs
    Jobs,
}

impl ChangesArgs {
    /// Returns the wire form.
    pub(crate) fn filter(&self) -> Result<v1::ChangeFilter, CliError> {
        let names = match key::pattern_of(&self.key)? {
            None => self.names.filter(),
            Some(key) => v1::RuleFilter {
                caller_service: Some(key.caller_service),
                caller_cluster: Some(key.caller_cluster),
                callee_service: Some(key.callee_service),
                callee_method: Some(key.callee_method),
                ..self.names.filter()
            },
        };
        let kind = match self.kind {
            None => v1::ObjectKind::Unspecified,
            Some(Kind::Rule) => v1::ObjectKind::Rule,
            Some(Kind::Guard) => v1::ObjectKind::Guard,
            Some(Kind::Kill) => v1::ObjectKind::Kill,
            Some(Kind::Token) => v1::ObjectKind::Token,
            Some(Kind::Queue) => v1::ObjectKind::Queue,
            Some(Kind::Jobs) => v1::ObjectKind::Jobs,
        };
        Ok(v1::ChangeFilter {
            names: Some(names),
            kind: kind.into(),
            author: self.by.clone(),
            since: self.since.map(Into::into),
            until: self.until.map(Into::into),
            min_revision: self.min_revision,
            max_revision: self.max_revision,
        })
    }
}

fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return SystemTime::now().checked_sub(ago).ok_or_else(|| "too long ago".to_owned());
    }
    humantime::parse_rfc3339_weak(text)
        .map_err(|_| "must be a duration such as 2h or a time such as 2026-07-01T12:00:00Z".to_owned())
}

/// Returns a row for each changed resource.
pub(crate) fn table(changes: &[v1::Change]) -> Table {
    use Align::{Left, Right};
    let objects = || changes.iter().flat_map(|change| &change.objects);
    let has_queues = objects().any(|object| queue_name(object.key.as_ref()).is_some());
    let is_proven = changes.iter().any(|change| !change.principal.is_empty());
    let mut columns = vec![("REVISION", Right), ("AGE", Right)];
    // The authenticated name comes first; without tokens it would be empty.
    columns.extend(is_proven.then_some(("BY", Left)));
    columns.extend([
        (if is_proven { "DECLARED" } else { "BY" }, Left),
        ("CHANGE", Left),
        ("KIND", Left),
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
    ]);
    columns.extend(has_queues.then_some(("QUEUE", Left)));
    columns.extend([("OWNER", Left), ("REASON", Left)]);
    let mut table = Table::new(&columns);
    let now = now();
    for change in changes {
        for object in &change.objects {
            let (kind, key) = named(object.key.as_ref());
            let done = match (&object.before, &object.after) {
                (_, Some(v1::Object { kind: Some(object::Kind::Jobs(action)) })) => done_with_jobs(action),
                (None, _) => "created".to_owned(),
                (_, None) => "deleted".to_owned(),
                _ => "updated".to_owned(),
            };
            let head = [change.revision.to_string(), age(change.at.as_ref(), now)];
            let what = [change.author.clone(), done, kind.to_owned()];
            let proven = is_proven.then(|| change.principal.clone());
            let columns = head.into_iter().chain(proven).chain(what).chain(key::columns(key));
            let queue = || queue_name(object.key.as_ref()).unwrap_or_default().to_owned();
            let columns = columns.chain(has_queues.then(queue));
            table.row(columns.chain([owner(object).to_owned(), change.reason.clone()]));
        }
    }
    table
}

/// Returns what an operator did with jobs.
fn done_with_jobs(action: &v1::JobAction) -> String {
    let done = match action.kind() {
        v1::JobActionKind::Unspecified => "changed",
        v1::JobActionKind::Run => "made due",
        v1::JobActionKind::Cancel => "cancelled",
        v1::JobActionKind::Replay => "replayed",
        v1::JobActionKind::Purge | v1::JobActionKind::PurgeQueue => "purged",
        v1::JobActionKind::ReadBody => return "body read".to_owned(),
    };
    format!("{} {done}", action.jobs)
}

/// Returns the owner, also of a deleted resource.
fn owner(change: &v1::ObjectChange) -> &str {
    match change.after.as_ref().or(change.before.as_ref()).and_then(|object| object.kind.as_ref()) {
        Some(object::Kind::Rule(rule)) => &rule.owner,
        Some(object::Kind::Guard(guard)) => &guard.owner,
        Some(object::Kind::Token(token)) => &token.name,
        Some(object::Kind::Queue(queue)) => &queue.owner,
        Some(object::Kind::Kill(_) | object::Kind::Jobs(_)) | None => "",
    }
}

fn named(key: Option<&v1::ObjectKey>) -> (&'static str, Option<&v1::Pattern>) {
    match key.and_then(|key| key.kind.as_ref()) {
        Some(object_key::Kind::Rule(key)) => ("rule", Some(key)),
        Some(object_key::Kind::Guard(key)) => ("guard", Some(key)),
        Some(object_key::Kind::Kill(key)) => ("kill", Some(key)),
        Some(object_key::Kind::Token(_)) => ("token", None),
        Some(object_key::Kind::Queue(_)) => ("queue", None),
        Some(object_key::Kind::Jobs(_)) => ("jobs", None),
        None => ("", None),
    }
}

fn queue_name(key: Option<&v1::ObjectKey>) -> Option<&str> {
    match key?.kind.as_ref()? {
        object_key::Kind::Queue(name) | object_key::Kind::Jobs(name) => Some(name),
        _ => None,
    }
}

/// Returns the rule, guard or queue.
pub(crate) fn item(object: v1::Object) -> Option<ManifestItem> {
    Some(match object.kind? {
        object::Kind::Rule(rule) => ManifestItem::Rule(rule),
        object::Kind::Guard(guard) => ManifestItem::Guard(guard),
        object::Kind::Queue(queue) => ManifestItem::Queue(queue),
        object::Kind::Kill(_) | object::Kind::Token(_) | object::Kind::Jobs(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_is_an_age_or_a_time() {
        let two_hours_ago = || SystemTime::now() - std::time::Duration::from_secs(7200);
        let (before, told, after) = (two_hours_ago(), moment("2h").unwrap(), two_hours_ago());
        assert!((before..=after).contains(&told), "{told:?} is not in {before:?} to {after:?}");
        let then = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
        assert_eq!(moment("1970-01-02T00:00:00Z"), Ok(then));
        for bad in ["", "yesterday", "2 weeks hence"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
