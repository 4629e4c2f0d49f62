//! Filters of the changes in lists and exports.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use damper_core::Faults;
use damper_proto::v1;
use damper_store::Change;
use prost::Message as _;

use crate::api::filter::ListFilter;
use crate::api::history::object::HistorySubject;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::digest::Digest;
use crate::write::request::all_or;

/// Largest clock difference between servers. The order of changes matches their times up to this difference.
const SKEW: Duration = Duration::from_secs(3600);

/// A filter of changes; every condition must be true.
pub(crate) struct Changes {
    names: ListFilter,
    kind: v1::ObjectKind,
    author: String,
    since: Option<SystemTime>,
    until: Option<SystemTime>,
    /// Starts at 1 or later; empty if the end is before the start.
    pub(crate) revisions: RangeInclusive<u64>,
    /// Fingerprint of the filter for page tokens.
    pub(crate) digest: u64,
}

impl Changes {
    pub(crate) fn read(wire: Option<v1::ChangeFilter>) -> Result<Self, ApiError> {
        let wire = wire.unwrap_or_default();
        let digest = Digest::hash(&wire.encode_to_vec());
        let v1::ChangeFilter { names, kind, author, since, until, min_revision, max_revision } = wire;
        let mut faults = Faults::none();
        let kind = v1::ObjectKind::try_from(kind).unwrap_or_else(|_| {
            faults.add("filter.kind", "is not known: rule, guard, kill, token, queue or jobs");
            v1::ObjectKind::Unspecified
        });
        let mut time = |field: &str, wire: Option<prost_types::Timestamp>| {
            let time = wire.map(SystemTime::try_from).transpose();
            time.unwrap_or_else(|_| {
                faults.add(format!("filter.{field}"), "is not a valid time");
                None
            })
        };
        let (since, until) = (time("since", since), time("until", until));
        let last = if max_revision == 0 { u64::MAX } else { max_revision };
        if last < min_revision {
            faults.add("filter.max_revision", format!("{last} is less than min_revision, {min_revision}"));
        }
        let revisions = min_revision.max(1)..=last;
        let names = all_or(ListFilter::without_mode("filter.names", names, "changes"), faults)?;
        Ok(Self { names, kind, author, since, until, revisions, digest })
    }

    /// True if the change itself passes; its objects are filtered separately.
    pub(crate) fn accepts_change(&self, change: &Change) -> bool {
        self.revisions.contains(&change.revision)
            && (self.author.is_empty() || self.author == change.author)
            && self.since.is_none_or(|since| change.at >= since)
            && self.until.is_none_or(|until| change.at < until)
    }

    /// True if the change has no objects and passes, as the acceptance of a store does.
    pub(crate) fn accepts_empty(&self, change: &Change) -> bool {
        change.edits.is_empty() && self.kind == v1::ObjectKind::Unspecified
    }

    /// True if the changed object passes.
    pub(crate) fn accepts(&self, named: &HistorySubject) -> bool {
        let kind = match named {
            HistorySubject::Subject(ResourceKey::Rule(_)) => v1::ObjectKind::Rule,
            HistorySubject::Subject(ResourceKey::Guard(_)) => v1::ObjectKind::Guard,
            HistorySubject::Subject(ResourceKey::Kill(_)) => v1::ObjectKind::Kill,
            HistorySubject::Subject(ResourceKey::Queue(_)) => v1::ObjectKind::Queue,
            HistorySubject::Token(_) => v1::ObjectKind::Token,
            HistorySubject::Jobs(_) => v1::ObjectKind::Jobs,
        };
        let of_kind = self.kind == v1::ObjectKind::Unspecified || self.kind == kind;
        let accepts_names = || match named {
            HistorySubject::Subject(subject) => self.names.accepts_subject(subject),
            HistorySubject::Token(id) => self.names.accepts_id(id.as_str()),
            HistorySubject::Jobs(queue) => self.names.accepts_id(queue),
        };
        of_kind && accepts_names()
    }

    /// True if the object belongs to the requested owner before or after the change.
    pub(crate) fn accepts_owner<'a>(&self, mut owners: impl Iterator<Item = &'a str>) -> bool {
        owners.any(|owner| self.names.accepts_owner(owner))
    }

    /// True if no earlier change can pass.
    pub(crate) fn ends_before(&self, change: &Change) -> bool {
        let too_old = |since: SystemTime| change.at.checked_add(SKEW).is_some_and(|at| at < since);
        change.revision < *self.revisions.start() || self.since.is_some_and(too_old)
    }
}
