//! A rule and a guard as they are stored: the wire's form, and the engine's where this version can read it.
//!
//! The key and the revision are the store's own and not part of the value. What can not be read keeps its place
//! (see the table), and is told once in the log.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use damper_core::{Faults, Guard, Pattern, Rule};
use damper_proto::{convert, v1};
use prost::Message;

/// A rule as stored.
#[derive(Debug)]
pub(crate) struct StoredRule {
    /// With its revision, when and by whom it was changed.
    pub(crate) wire: v1::Rule,
    /// None where this version can not read it.
    pub(crate) rule: Option<Arc<Rule>>,
    /// The stored value of such a one.
    pub(crate) unread: Option<Bytes>,
}

/// A guard as stored.
#[derive(Debug)]
pub(crate) struct StoredGuard {
    pub(crate) pattern: Pattern,
    /// With its revision, when and by whom it was changed.
    pub(crate) wire: v1::Guard,
    /// None where this version can not read it.
    pub(crate) guard: Option<Arc<Guard>>,
    /// The stored value of such a one.
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

    /// The value to store for a rule.
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

    /// A guard that is about to be stored, to see what it would do.
    pub(crate) fn tried(guard: Guard, wire: v1::Guard) -> Self {
        Self { pattern: guard.pattern().clone(), wire, guard: Some(Arc::new(guard)), unread: None }
    }

    /// The value to store for a guard.
    pub(crate) fn value(guard: &v1::Guard) -> Vec<u8> {
        v1::Guard { revision: 0, ..guard.clone() }.encode_to_vec()
    }
}

/// The wire's form, as far as it can be read, and the engine's.
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
        // What this version knows of it is shown, and never carried out.
        Err(problem) => (of(W::decode(value).unwrap_or_default()), Err(problem)),
    }
}

/// A message of which this version knows every field. prost drops the fields that it does not know, so that the
/// message is shorter then; carried out or stored again it would lack what a later version put into it.
pub(crate) fn decoded_whole<W: Message + Default>(value: &[u8]) -> Result<W, String> {
    let message = W::decode(value).map_err(|error| error.to_string())?;
    match message.encoded_len() == value.len() {
        true => Ok(message),
        false => Err("it has fields of a later version".to_owned()),
    }
}

fn warn(kind: &str, pattern: &Pattern, revision: u64, problem: &dyn Display) {
    tracing::warn!(%pattern, revision, %problem, "a stored {kind} can not be read; rules there are off");
}
