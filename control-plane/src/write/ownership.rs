//! Changes by hand of what belongs to somebody: they are made, and told.
//!
//! A set is refused where it would change what another owns; one change by hand is not, because in an incident
//! whoever is there must be able to act. But the owner's next set undoes it, which its author should know.

use damper_core::lint::codes;
use damper_proto::v1;

use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::findings;

/// That what is changed or removed belongs to somebody whom the author does not name. What the new rule or guard says
/// does not count: who writes back what was read names its owner without having thought of it.
pub(crate) fn finding(table: &Snapshot, subject: &ResourceKey, said: &str) -> Option<v1::Finding> {
    let owner = table.owner_of(subject);
    if owner.is_empty() || owner == said {
        return None;
    }
    let kind = if matches!(subject, ResourceKey::Guard(_)) { "guard" } else { "rule" };
    let message = format!(
        "the {kind} is in the set of {owner}: the next `damper apply --owner {owner}` undoes this change"
    );
    Some(findings::finding(codes::OWNED_BY_ANOTHER, &subject.pattern().to_string(), "owner", message))
}
