//! Values of a document to a message, with all faults at once.
//!
//! serde stops at the first value of a wrong shape. To report all, that value is recorded, removed, and the
//! rest is read again; the result is then converted to the engine's types, which finds values out of range.

use damper_core::Faults;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use super::strict::Strict;
use super::{KINDS, Manifest, form};
use crate::convert;

/// Most values of a wrong shape reported per document.
const MAX_MISSHAPEN: usize = 32;

/// Reads a document; the result is complete only without faults.
pub(super) fn manifest(mut document: Value, faults: &mut Faults) -> Option<Manifest> {
    let Some(fields) = document.as_object_mut() else {
        faults.add("", "must be a map that starts with its kind, such as kind: Rule");
        return None;
    };
    let kind = match fields.remove("kind") {
        Some(Value::String(kind)) => kind,
        Some(kind) => {
            faults.add("kind", format!("must be {KINDS}, not {kind}"));
            return None;
        }
        None => {
            faults.add("kind", format!("required ({KINDS})"));
            return None;
        }
    };
    match kind.as_str() {
        "Rule" => message(document, convert::rule, faults).map(Manifest::Rule),
        "Guard" => message(document, convert::guard, faults).map(Manifest::Guard),
        _ => {
            faults.add("kind", format!("must be {KINDS}, not {kind:?}"));
            None
        }
    }
}

fn message<M: DeserializeOwned, T>(
    mut document: Value,
    convert: impl Fn(&M) -> Result<T, Faults>,
    faults: &mut Faults,
) -> Option<M> {
    let mut taken_out = TakenOut::default();
    loop {
        let error = match serde_path_to_error::deserialize::<_, M>(Strict(&document)) {
            Ok(message) => {
                if let Err(found) = convert(&message) {
                    taken_out.add_others(&found, faults);
                }
                return Some(message);
            }
            Err(error) => error,
        };
        if !taken_out.take(&mut document, error.path(), &error.inner().to_string(), faults) {
            return None;
        }
    }
}

/// Removed values of a wrong shape.
#[derive(Default)]
struct TakenOut {
    paths: Vec<String>,
    /// Place of the last one, and number of replacements there.
    last: (String, usize),
}

impl TakenOut {
    /// Records the value at the path and removes it; false if it does not exist or the limit is reached.
    fn take(&mut self, document: &mut Value, path: &Path, problem: &str, faults: &mut Faults) -> bool {
        let segments: Vec<_> = path.iter().collect();
        let chosen =
            segments.iter().rev().take_while(|segment| matches!(segment, Segment::Enum { .. })).count();
        let place = segments.split_at(segments.len() - chosen).0;
        let shown_place = shown(place);
        if self.last.0 == shown_place && self.last.1 > 0 {
            self.last.1 += 1;
        } else {
            let shown = shown(&segments);
            faults.add(&shown, problem);
            if self.paths.len() == MAX_MISSHAPEN {
                return false;
            }
            self.paths.push(shown);
            self.last = (shown_place, 1);
        }
        take_out(document, place, self.last.1)
    }

    /// Adds faults of the conversion, except those caused by the removal.
    fn add_others(&self, found: &Faults, faults: &mut Faults) {
        for fault in found.iter() {
            let made = self.paths.iter().any(|path| {
                convert::is_at_or_below(path, &fault.path) || convert::is_at_or_below(&fault.path, path)
            });
            if !made {
                faults.add(&fault.path, &fault.problem);
            }
        }
    }
}

/// Path for faults: `policy.retry.codes.allow[2]`.
fn shown(path: &[&Segment]) -> String {
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

/// Removes the value at the path from the document; false if it does not exist. A oneof is removed with its
/// field. In a list a stand-in takes the place, which avoids further faults: first a name or duration, then a
/// oneof, then a message.
fn take_out(document: &mut Value, path: &[&Segment], tries: usize) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    let mut at = document;
    for segment in parents {
        let Some(next) = part(at, segment) else { return false };
        at = next;
    }
    match (last, at) {
        (Segment::Map { key }, Value::Object(fields)) => fields.remove(key).is_some(),
        (Segment::Seq { index }, Value::Array(items)) => {
            let in_place = [form::REFUSED.into(), Value::Null, Value::Object(Map::new())];
            let in_place = in_place.into_iter().nth(tries - 1);
            in_place.zip(items.get_mut(*index)).map(|(value, item)| *item = value).is_some()
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
