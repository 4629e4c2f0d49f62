//! What this replica knows: the snapshot of rules, guards, kills and tokens at one revision, how it follows the store, and
//! earlier revisions.

pub(crate) mod edited;
pub(crate) mod error;
pub(crate) mod exclusive;
pub(crate) mod guards;
pub(crate) mod held_kills;
pub(crate) mod history;
pub(crate) mod kills;
pub(crate) mod known_store;
pub(crate) mod preview;
pub(crate) mod resource_key;
pub(crate) mod retention;
pub(crate) mod shared;
pub(crate) mod snapshot;
pub(crate) mod stored;
pub(crate) mod text;
pub(crate) mod tokens;
pub(crate) mod values;
pub(crate) mod watcher;
