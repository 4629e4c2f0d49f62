//! Values of a document to a type, with all faults at once.
//!
//! serde stops at the first value of a wrong shape. To report all, that value is recorded, removed, and the
//! rest is read again; the result is then converted, which finds values out of range.

use damper_core::Faults;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::strict::Strict;

/// Most values of a wrong shape reported per document.
const MAX_MISSHAPEN: usize = 32;

/// Reads a value as a type and converts it; the result is valid only without faults.
///
/// The type needs a default for each field, because values of a wrong shape are removed.
pub fn read<M: DeserializeOwned, T>(
    mut value: Value,
    convert: impl FnOnce(M) -> Result<T, Faults>,
    faults: &mut Faults,
) -> Option<T> {
    let mut removed = RemovedItems::default();
    for _ in 0..=MAX_MISSHAPEN {
        let error = match serde_path_to_error::deserialize::<_, M>(Strict(&value)) {
            Ok(message) => {
                return convert(message).map_err(|found| add_others(&removed.undo(&found), faults)).ok();
            }
            Err(error) => error,
        };
        let path: Vec<&Segment> = error.path().iter().collect();
        add_shape(removed.original(&shown(&path)), &error.inner().to_string(), faults);
        if !removed.remove(&mut value, &path) {
            return None;
        }
    }
    None
}

/// Adds a value of a wrong shape, unless a part of it was removed before.
fn add_shape(path: String, problem: &str, faults: &mut Faults) {
    if faults.iter().any(|known| known.path != path && is_at_or_below(&known.path, &path)) {
        return;
    }
    match problem.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(field) if path.is_empty() => faults.add(field, "required"),
        Some(field) => faults.add(format!("{path}.{field}"), "required"),
        None => faults.add(path, problem),
    }
}

/// Adds faults, except those of a field that has a fault already, and of the map or list that lacks it: only
/// a stand-in was checked there.
pub fn add_others(found: &Faults, faults: &mut Faults) {
    let known: Vec<String> = faults.iter().map(|fault| fault.path.clone()).collect();
    for fault in found.iter() {
        let follows = |path: &String| lacks(&fault.path, path) || is_at_or_below(&fault.path, path);
        if !known.iter().any(follows) {
            faults.add(&fault.path, &fault.problem);
        }
    }
}

/// True if the path is `parent` or a part of it.
fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// True if the path is a field of the map at `parent` or in its list, or in the list at `parent`.
fn lacks(parent: &str, path: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| match rest.strip_prefix('.') {
        Some(field) => !field.contains('.'),
        None => rest.starts_with('['),
    })
}

/// Items removed from lists: the path of the list and the index, both as in the text.
#[derive(Default)]
struct RemovedItems(Vec<(String, usize)>);

impl RemovedItems {
    /// Removes the value at the path; false if it does not exist. An enum is removed with its field.
    fn remove(&mut self, value: &mut Value, path: &[&Segment]) -> bool {
        let chosen = path.iter().rev().take_while(|segment| matches!(segment, Segment::Enum { .. })).count();
        let Some((last, parents)) = path.split_at(path.len() - chosen).0.split_last() else { return false };
        let mut at = value;
        for segment in parents {
            let Some(next) = part(at, segment) else { return false };
            at = next;
        }
        match (last, at) {
            (Segment::Map { key }, Value::Object(fields)) => fields.remove(key).is_some(),
            (Segment::Seq { index }, Value::Array(items)) if *index < items.len() => {
                items.remove(*index);
                let list = self.original(&shown(parents));
                let index = self.original_index(&list, *index);
                self.0.push((list, index));
                true
            }
            _ => false,
        }
    }

    /// Returns the path in the text of a path in the value without the removed items.
    fn original(&self, path: &str) -> String {
        let mut whole = String::new();
        let mut rest = path;
        while let Some((name, (index, after))) =
            rest.split_once('[').and_then(|(name, rest)| Some((name, rest.split_once(']')?)))
        {
            whole.push_str(name);
            let shown = match index.parse() {
                Ok(index) => self.original_index(&whole, index).to_string(),
                Err(_) => index.to_owned(),
            };
            whole.push_str(&format!("[{shown}]"));
            rest = after;
        }
        whole + rest
    }

    fn original_index(&self, list: &str, index: usize) -> usize {
        let mut removed: Vec<usize> =
            self.0.iter().filter(|(path, _)| path == list).map(|(_, index)| *index).collect();
        removed.sort_unstable();
        removed.into_iter().fold(index, |index, removed| if removed <= index { index + 1 } else { index })
    }

    /// Returns the faults with their paths in the text.
    fn undo(&self, found: &Faults) -> Faults {
        let mut faults = Faults::none();
        found.iter().for_each(|fault| faults.add(self.original(&fault.path), &fault.problem));
        faults
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

fn part<'a>(value: &'a mut Value, segment: &Segment) -> Option<&'a mut Value> {
    match segment {
        Segment::Map { key } | Segment::Enum { variant: key } => value.get_mut(key),
        Segment::Seq { index } => value.get_mut(index),
        Segment::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::parse_one;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Outer {
        lists: Vec<Inner>,
        name: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        numbers: Vec<u32>,
    }

    /// Faults of numbers above 9 and of empty lists.
    fn checked(outer: Outer) -> Result<Outer, Faults> {
        let mut faults = Faults::none();
        for (i, inner) in outer.lists.iter().enumerate() {
            if inner.numbers.is_empty() {
                faults.add(format!("lists[{i}].numbers"), "must not be empty");
            }
            for (j, number) in inner.numbers.iter().enumerate().filter(|(_, number)| **number > 9) {
                faults.add(format!("lists[{i}].numbers[{j}]"), format!("must be at most 9, not {number}"));
            }
        }
        faults.or(outer)
    }

    fn faults_of(text: &str) -> Vec<String> {
        let error = parse_one(text, |value, faults| read(value, checked, faults)).unwrap_err();
        error.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn removed_items_keep_the_places_of_the_others() {
        let text = "lists:\n- 3\n- numbers: [x, 10, ~, 2, {}, 11]\n- {}\n- numbers: [-1]\nname: [a]\n";
        let number = "must be a whole number from 0 to 4294967295, not";
        assert_eq!(
            faults_of(text),
            [
                "line 2: lists[0]: must be a map, not 3".to_owned(),
                format!("line 3: lists[1].numbers[0]: {number} \"x\""),
                format!("line 3: lists[1].numbers[2]: {number} null"),
                format!("line 3: lists[1].numbers[4]: {number} a map"),
                "line 3: lists[1].numbers[1]: must be at most 9, not 10".to_owned(),
                "line 3: lists[1].numbers[5]: must be at most 9, not 11".to_owned(),
                "line 4: lists[2].numbers: must not be empty".to_owned(),
                format!("line 5: lists[3].numbers[0]: {number} -1"),
                "line 6: name: must be text, not a list".to_owned(),
            ]
        );
    }

    #[test]
    fn number_of_faults_is_limited() {
        let found = faults_of(&format!("lists: [{}]", "1, ".repeat(1000)));
        assert_eq!(found.len(), MAX_MISSHAPEN + 1);
    }

    #[test]
    fn text_is_one_map() {
        assert_eq!(faults_of("7"), ["line 1: must be a map, not 7"]);
        assert_eq!(faults_of("name: a\n---\nname: b\n"), ["must be one document"]);
        assert!(faults_of("name: a\nname: b\n")[0].contains("duplicate"));
        for empty in ["", "# nothing\n\n"] {
            assert!(parse_one(empty, |value, faults| read(value, checked, faults)).is_ok());
        }
    }
}
