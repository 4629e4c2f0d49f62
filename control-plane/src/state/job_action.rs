//! The last action of an operator on jobs, as an entry of the store: so the history keeps each of them.
//!
//! One key for all: the present value is of no use, and memory stays bounded. Retention is that of all
//! changes. Values differ by their time, so that an equal action is a change again.

use bytes::Bytes;
use damper_proto::v1;
use prost::Message as _;

/// Key of the entry.
pub(crate) const JOB_ACTION: &str = "job-action";

/// Returns the value to store.
pub(crate) fn value(action: &v1::JobAction) -> Bytes {
    action.encode_to_vec().into()
}

/// Reads a stored value, as far as this version knows it.
pub(crate) fn read(value: &[u8]) -> v1::JobAction {
    v1::JobAction::decode(value).unwrap_or_default()
}

/// Returns the queue of an action.
pub(crate) fn queue(action: &v1::JobAction) -> String {
    action.filter.as_ref().map(|filter| filter.queue.clone()).unwrap_or_default()
}
