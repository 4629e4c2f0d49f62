//! Stored rule, guard and queue: the wire form, and the parsed form if this version can read it.
//!
//! Key and revision are the store's own and not part of the value. An unreadable entry keeps its place (see
//! the snapshot) and is logged once.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use damper_core::job::Queue;
use damper_core::{Faults, Guard, Pattern, Rule};
use damper_proto::{convert, v1};
use prost::Message;

/// Rule as stored.
#[derive(Debug)]
pub(crate) struct StoredRule {
    /// With revision, time and author of its change.
    pub(crate) wire: v1::Rule,
    /// `None` if this version cannot read it.
    pub(crate) rule: Option<Arc<Rule>>,
    /// Stored value of an unreadable rule.
    pub(crate) unread: Option<Bytes>,
}

/// Guard as stored.
#[derive(Debug)]
pub(crate) struct StoredGuard {
    pub(crate) pattern: Pattern,
    /// With revision, time and author of its change.
    pub(crate) wire: v1::Guard,
    /// `None` if this version cannot read it.
    pub(crate) guard: Option<Arc<Guard>>,
    /// Stored value of an unreadable guard.
    pub(crate) unread: Option<Bytes>,
}

/// Queue as stored.
#[derive(Debug)]
pub(crate) struct StoredQueue {
    /// With revision, time and author of its change.
    pub(crate) wire: v1::Queue,
    /// `None` if this version cannot read it.
    pub(crate) queue: Option<Arc<Queue>>,
    /// Stored value of an unreadable queue.
    pub(crate) unread: Option<Bytes>,
}

impl StoredRule {
    pub(crate) fn read(pattern: &Pattern, value: &[u8], revision: u64) -> Self {
        let of = |wire| v1::Rule { key: Some(pattern.into()), revision, ..wire };
        let (wire, rule) = read(value, of, convert::rule);
        let rule = rule.inspect_err(|problem| warn("rule", pattern, revision, problem)).ok();
        let unread = rule.is_none().then(|| Bytes::copy_from_slice(value));
        Self { wire, rule: rule.map(Arc::new), unread }
    }

    /// Returns the value to store for a rule.
    pub(crate) fn value(rule: &v1::Rule) -> Vec<u8> {
        v1::Rule { revision: 0, ..rule.clone() }.encode_to_vec()
    }
}

impl StoredGuard {
    pub(crate) fn read(pattern: &Pattern, value: &[u8], revision: u64) -> Self {
        let of = |wire| v1::Guard { key: Some(pattern.into()), revision, ..wire };
        let (wire, guard) = read(value, of, convert::guard);
        let guard = guard.inspect_err(|problem| warn("guard", pattern, revision, problem)).ok();
        let unread = guard.is_none().then(|| Bytes::copy_from_slice(value));
        Self { pattern: pattern.clone(), wire, guard: guard.map(Arc::new), unread }
    }

    /// Returns a guard that is about to be stored, to check its effect.
    pub(crate) fn tried(guard: Guard, wire: v1::Guard) -> Self {
        Self { pattern: guard.pattern().clone(), wire, guard: Some(Arc::new(guard)), unread: None }
    }

    /// Returns the value to store for a guard.
    pub(crate) fn value(guard: &v1::Guard) -> Vec<u8> {
        v1::Guard { revision: 0, ..guard.clone() }.encode_to_vec()
    }
}

impl StoredQueue {
    pub(crate) fn read(name: &str, value: &[u8], revision: u64) -> Self {
        let of = |wire| v1::Queue { name: name.to_owned(), revision, ..wire };
        let (wire, queue) = read(value, of, convert::queue);
        let queue = queue.inspect_err(|problem| {
            tracing::warn!(name, revision, %problem, "stored queue cannot be read; its jobs are held");
        });
        let queue = queue.ok();
        let unread = queue.is_none().then(|| Bytes::copy_from_slice(value));
        Self { wire, queue: queue.map(Arc::new), unread }
    }

    /// Returns the value to store for a queue.
    pub(crate) fn value(queue: &v1::Queue) -> Vec<u8> {
        v1::Queue { revision: 0, ..queue.clone() }.encode_to_vec()
    }

    /// Returns a queue without the fields that the server sets.
    pub(crate) fn authored(queue: v1::Queue) -> v1::Queue {
        v1::Queue { revision: 0, updated_at: None, updated_by: String::new(), ..queue }
    }
}

/// Reads the wire form as far as possible, and the parsed form.
fn read<W: Message + Default, T>(
    value: &[u8],
    of: impl Fn(W) -> W,
    parse: impl Fn(&W) -> Result<T, Faults>,
) -> (W, Result<T, String>) {
    match decoded_whole::<W>(value) {
        Ok(wire) => {
            let wire = of(wire);
            let parsed = parse(&wire).map_err(|faults| faults.to_string());
            (wire, parsed)
        }
        // The known fields are shown, never applied.
        Err(problem) => (of(W::decode(value).unwrap_or_default()), Err(problem)),
    }
}

/// Decodes a message if this version knows all of its fields. prost drops unknown fields, so the decoded
/// message is then shorter; applied or stored again it would lack the fields of a later version.
pub(crate) fn decoded_whole<W: Message + Default>(value: &[u8]) -> Result<W, String> {
    let message = W::decode(value).map_err(|error| error.to_string())?;
    match message.encoded_len() == value.len() {
        true => Ok(message),
        false => Err("it has fields of a later version".to_owned()),
    }
}

fn warn(kind: &str, pattern: &Pattern, revision: u64, problem: &dyn Display) {
    tracing::warn!(%pattern, revision, %problem, "stored {kind} cannot be read; rules for its routes are off");
}
