//! Backoffs: a sequence of waits, a sum of them, or one by code; the sequences are in
//! [`waits`](super::waits).
//!
//! Messages of the wire nest without limit, the engine's types do not: a part of a sum or a code has a
//! sequence, so reading descends one level for any message.

use damper_core::policy::{LIST_LENGTH, RETRYABLE};
use damper_core::{Backoff, CodeSet, Faults, Waits};

use super::waits::waits;
use super::{code, within};
use crate::v1::{self, backoff::Kind};

/// Reads a backoff; returns a stand-in if it was rejected.
pub(super) fn backoff(wire: &v1::Backoff, faults: &mut Faults) -> Backoff {
    let v1::Backoff { kind } = wire;
    match kind {
        None => {
            let kinds = "none, fixed, random, incrementing, exponential, fibonacci, custom, sum or by_code";
            faults.add("", format!("required ({kinds})"));
            Backoff::Always(Waits::None)
        }
        Some(Kind::Sum(wire)) => within("sum", faults, |faults| sum(wire, faults)),
        Some(Kind::ByCode(wire)) => within("by_code", faults, |faults| by_code(wire, faults)),
        Some(_) => Backoff::Always(waits(wire, "", faults)),
    }
}

fn sum(wire: &v1::SumBackoff, faults: &mut Faults) -> Backoff {
    let v1::SumBackoff { parts } = wire;
    let part = |at: &str, part: &v1::Backoff, faults: &mut Faults| {
        within(at, faults, |faults| waits(part, "a sum", faults))
    };
    Backoff::Sum(entries("parts", parts, &Waits::None, part, faults))
}

fn by_code(wire: &v1::ByCodeBackoff, faults: &mut Faults) -> Backoff {
    let v1::ByCodeBackoff { default, codes } = wire;
    let default = default.as_ref().map_or_else(Waits::default, |wire| {
        within("default", faults, |faults| waits(wire, "by_code", faults))
    });
    let entry = |at: &str, entry: &v1::CodeBackoff, faults: &mut Faults| {
        within(at, faults, |faults| code_backoff(entry, faults))
    };
    Backoff::ByCode { default, codes: entries("codes", codes, &(RETRYABLE, Waits::None), entry, faults) }
}

fn code_backoff(wire: &v1::CodeBackoff, faults: &mut Faults) -> (CodeSet, Waits) {
    let v1::CodeBackoff { codes, backoff } = wire;
    let codes = code::set("codes", codes, faults).unwrap_or(RETRYABLE);
    let waits = within("backoff", faults, |faults| match backoff {
        Some(wire) => waits(wire, "by_code", faults),
        None => {
            faults.add("", "required");
            Waits::None
        }
    });
    (codes, waits)
}

/// Reads the entries of a list. The engine rejects a list that is too long; entries beyond its limit are
/// replaced by `beyond`, which limits the number of faults.
pub(super) fn entries<W, T: Clone>(
    path: &str,
    wire: &[W],
    beyond: &T,
    read: impl Fn(&str, &W, &mut Faults) -> T,
    faults: &mut Faults,
) -> Vec<T> {
    let most = usize::try_from(LIST_LENGTH.max).unwrap_or(usize::MAX);
    let mut entries = Vec::with_capacity(wire.len());
    for (i, entry) in wire.iter().enumerate() {
        entries.push(if i < most { read(&format!("{path}[{i}]"), entry, faults) } else { beyond.clone() });
    }
    entries
}

impl From<&Backoff> for v1::Backoff {
    fn from(backoff: &Backoff) -> Self {
        let kind = match backoff {
            Backoff::Always(waits) => return waits.into(),
            Backoff::Sum(parts) => {
                Kind::Sum(v1::SumBackoff { parts: parts.iter().map(Into::into).collect() })
            }
            Backoff::ByCode { default, codes } => Kind::ByCode(Box::new(v1::ByCodeBackoff {
                default: Some(Box::new(default.into())),
                codes: codes.iter().map(code_backoff_to_wire).collect(),
            })),
        };
        Self { kind: Some(kind) }
    }
}

fn code_backoff_to_wire((set, waits): &(CodeSet, Waits)) -> v1::CodeBackoff {
    let v1::CodeList { codes } = (*set).into();
    v1::CodeBackoff { codes, backoff: Some(waits.into()) }
}
