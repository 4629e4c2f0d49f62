//! A document's values to a message, with every fault at once.
//!
//! serde stops at the first value of a wrong shape. So that one reading shows them all, that value is noted,
//! taken out, and the rest is read again; what is left is then converted to the engine's types, which finds
//! the values out of range.

use damper_core::Faults;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::strict::Strict;
use super::{KINDS, Manifest, form};
use crate::{convert, v1};

/// So many values of a wrong shape are shown per document.
const MAX_MISSHAPEN: usize = 32;

/// Reads a document; what it returns is whole only if no fault was noted.
pub(super) fn manifest(mut document: Value, faults: &mut Faults) -> Option<Manifest> {
    let Some(fields) = document.as_object_mut() else {
        faults.add("", format!("a document starts with its kind, such as kind: {KINDS}"));
        return None;
    };
    match fields.remove("kind") {
        Some(Value::String(kind)) if kind == "Rule" => rule(document, faults).map(Manifest::Rule),
        Some(Value::String(kind)) => {
            faults.add("kind", format!("{kind:?} is not known: {KINDS}"));
            None
        }
        Some(kind) => {
            faults.add("kind", format!("{kind} is not known: {KINDS}"));
            None
        }
        None => {
            faults.add("kind", format!("must be said: {KINDS}"));
            None
        }
    }
}

fn rule(mut document: Value, faults: &mut Faults) -> Option<v1::Rule> {
    let mut taken_out: Vec<String> = Vec::new();
    loop {
        let error = match serde_path_to_error::deserialize::<_, v1::Rule>(Strict(&document)) {
            Ok(rule) => {
                add_faults(&rule, &taken_out, faults);
                return Some(rule);
            }
            Err(error) => error,
        };
        let path = shown(error.path());
        faults.add(&path, error.inner().to_string());
        if taken_out.len() == MAX_MISSHAPEN || !take_out(&mut document, error.path()) {
            return None;
        }
        taken_out.push(path);
    }
}

/// Adds what conversion refuses, apart from what only the taking out has made wrong.
fn add_faults(rule: &v1::Rule, taken_out: &[String], faults: &mut Faults) {
    let Err(found) = convert::rule(rule) else { return };
    for fault in found.iter() {
        let made = taken_out.iter().any(|path| {
            convert::is_at_or_below(path, &fault.path) || convert::is_at_or_below(&fault.path, path)
        });
        if !made {
            faults.add(&fault.path, &fault.problem);
        }
    }
}

/// As faults show it: `policy.retry.codes.allow[2]`.
fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => shown.push_str(&format!("[{index}]")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                if !shown.is_empty() {
                    shown.push('.');
                }
                shown.push_str(key);
            }
            Segment::Unknown => {}
        }
    }
    shown
}

/// Takes the value at the path out of the document; false if it is not there. A choice goes with what was
/// chosen, and in a list something takes the place, so that nothing else becomes wrong.
fn take_out(document: &mut Value, path: &Path) -> bool {
    let segments: Vec<_> = path.iter().collect();
    let chosen = segments.iter().rev().take_while(|segment| matches!(segment, Segment::Enum { .. })).count();
    let Some((last, parents)) = segments.split_at(segments.len() - chosen).0.split_last() else {
        return false;
    };
    let mut at = document;
    for segment in parents {
        let Some(next) = part(at, segment) else { return false };
        at = next;
    }
    match (last, at) {
        (Segment::Map { key }, Value::Object(fields)) => fields.remove(key).is_some(),
        (Segment::Seq { index }, Value::Array(items)) => {
            let item = items.get_mut(*index);
            item.map(|item| *item = form::REFUSED.into()).is_some()
        }
        _ => false,
    }
}

fn part<'a>(value: &'a mut Value, segment: &Segment) -> Option<&'a mut Value> {
    match segment {
        Segment::Map { key } | Segment::Enum { variant: key } => value.get_mut(key),
        Segment::Seq { index } => value.get_mut(index),
        Segment::Unknown => None,
    }
}
