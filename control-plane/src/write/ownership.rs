//! The finding about a single change of a rule, guard or queue that another owner's set contains.
//!
//! A set that would change the rules of another owner is rejected. A single change is accepted, because an
//! operator must be able to act in an incident. The next set of the owner undoes the change, so its author
//! gets a finding.

use damper_core::lint::codes;
use damper_proto::v1;

use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::findings;

/// Returns the finding if the subject has an owner and the author names none or another. The owner field of
/// the new resource does not count: writing back what was read repeats it unintentionally.
pub(crate) fn finding(table: &Snapshot, subject: &ResourceKey, declared: &str) -> Option<v1::Finding> {
    let owner = table.owner_of(subject);
    if owner.is_empty() || owner == declared {
        return None;
    }
    let message = format!(
        "the {} is in the set of {owner}: the next `damper apply --owner {owner}` undoes this change",
        subject.kind()
    );
    Some(findings::finding(codes::OWNED_BY_ANOTHER, &subject.words(), "owner", message))
}
