//! The settings of other owners that a set would change: the error of a set that is rejected for its owner.

use std::collections::HashMap;

use damper_proto::manifest::Settings;
use damper_proto::v1;

use crate::state::error::{ApiError, Current};
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::change_set::{ChangeSet, ResourceChange, Written};

/// The most conflicts that are listed; the others are counted.
const MAX_CONFLICTS: usize = 100;
const UNREADABLE: &str = "unreadable by this control plane";

/// Returns the settings of other owners that a set would change, from the current entries.
pub(crate) fn owned(
    set: &ChangeSet,
    there: impl IntoIterator<Item = (ResourceKey, Option<Current>)>,
) -> ApiError {
    let wanted: HashMap<&ResourceKey, &ResourceChange> =
        set.0.iter().map(|change| (&change.subject, change)).collect();
    let (mut conflicts, mut total) = (Vec::new(), 0);
    for (subject, current) in there {
        let found = of_subject(&subject, current.as_ref(), wanted.get(&subject).copied());
        total += found.len();
        let room = MAX_CONFLICTS.saturating_sub(conflicts.len());
        conflicts.extend(found.into_iter().take(room));
    }
    ApiError::Owned(v1::Conflicts { conflicts, total: u32::try_from(total).unwrap_or(u32::MAX) })
}

/// Returns the same error from the snapshot of this replica.
pub(crate) fn owned_in(set: &ChangeSet, table: &Snapshot, refused: Vec<ResourceKey>) -> ApiError {
    let there = refused.into_iter().map(|subject| {
        let current = Current::stored(table, &subject);
        (subject, current)
    });
    owned(set, there)
}

fn of_subject(
    subject: &ResourceKey,
    current: Option<&Current>,
    wanted: Option<&ResourceChange>,
) -> Vec<v1::Conflict> {
    let guard = matches!(subject, ResourceKey::Guard(_));
    let queue = if let ResourceKey::Queue(name) = subject { name.as_str() } else { "" };
    let owner = current.map_or("", Current::owner);
    let conflict = |field: String, current: String, wanted: String| v1::Conflict {
        guard,
        key: subject.pattern().map(Into::into),
        owner: owner.to_owned(),
        field,
        current,
        wanted,
        queue: queue.to_owned(),
    };
    let are = match current {
        Some(Current::Rule(rule)) => Settings::of_rule(rule),
        Some(Current::Guard(guard)) => Settings::of_guard(guard),
        Some(Current::Queue(queue)) => Settings::of_queue(queue),
        Some(Current::Kill(_)) | None => Ok(Settings::none()),
    };
    let Ok(are) = are else {
        let whole = if guard { "ceiling" } else { "policy" };
        return vec![conflict(whole.to_owned(), UNREADABLE.to_owned(), String::new())];
    };
    let put = wanted.and_then(|change| change.put.as_ref());
    // A parsed resource has settings.
    let wants = put.and_then(|put| match put {
        Written::Rule(rule) => Settings::of_rule(&rule.wire).ok(),
        Written::Guard(guard) => Settings::of_guard(&guard.wire).ok(),
        Written::Queue(queue) => Settings::of_queue(&queue.wire).ok(),
    });
    // The author wrote no owner; the set's owner is implied.
    let implied = put.is_some() && wanted.is_some_and(|change| !change.names_owner);
    let differing = are.differing(wants.unwrap_or_default()).into_iter();
    let differing = differing.filter(|one| !(implied && one.path == "owner"));
    differing
        .map(|one| conflict(one.path, one.old.unwrap_or_default(), one.new.unwrap_or_default()))
        .collect()
}
