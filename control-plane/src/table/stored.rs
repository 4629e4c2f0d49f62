//! A rule and a guard as they are stored: the wire's form, and the engine's where this version can read it.
//!
//! The key and the revision are the store's own and not part of the value. What can not be read keeps its place
//! (see the table), and is told once in the log.

use std::fmt::Display;
use std::sync::Arc;

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
}

/// A guard as stored.
#[derive(Debug)]
pub(crate) struct StoredGuard {
    pub(crate) pattern: Pattern,
    /// With its revision, when and by whom it was changed.
    pub(crate) wire: v1::Guard,
    /// None where this version can not read it.
    pub(crate) guard: Option<Arc<Guard>>,
}

impl StoredRule {
    pub(super) fn read(pattern: &Pattern, value: &[u8], revision: u64) -> Self {
        let of = |wire| v1::Rule { key: Some(pattern.into()), revision, ..wire };
        let (wire, rule) = read(value, of, convert::rule);
        let rule = rule.inspect_err(|problem| warn("rule", pattern, revision, problem)).ok();
        Self { wire, rule: rule.map(Arc::new) }
    }

    /// The value to store for a rule.
    pub(crate) fn value(rule: &v1::Rule) -> Vec<u8> {
        v1::Rule { revision: 0, ..rule.clone() }.encode_to_vec()
    }
}

impl StoredGuard {
    pub(super) fn read(pattern: &Pattern, value: &[u8], revision: u64) -> Self {
        let of = |wire| v1::Guard { key: Some(pattern.into()), revision, ..wire };
        let (wire, guard) = read(value, of, convert::guard);
        let guard = guard.inspect_err(|problem| warn("guard", pattern, revision, problem)).ok();
        Self { pattern: pattern.clone(), wire, guard: guard.map(Arc::new) }
    }

    /// A guard that is about to be stored, to see what it would do.
    pub(crate) fn tried(guard: Guard, wire: v1::Guard) -> Self {
        Self { pattern: guard.pattern().clone(), wire, guard: Some(Arc::new(guard)) }
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
    match W::decode(value) {
        Ok(wire) => {
            let wire = of(wire);
            let parsed = parse(&wire).map_err(|faults| faults.to_string());
            (wire, parsed)
        }
        Err(error) => (of(W::default()), Err(error.to_string())),
    }
}

fn warn(kind: &str, pattern: &Pattern, revision: u64, problem: &dyn Display) {
    tracing::warn!(%pattern, revision, %problem, "a stored {kind} can not be read; rules there are off");
}
