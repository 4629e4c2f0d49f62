//! Strict reading of YAML and JSON: all faults of a text at once, each with document, line and path.
//!
//! [`parse`] reads the documents of a text into plain values that keep their lines. [`read`] turns a value
//! into a type by serde, with all values of a wrong shape, and converts it, with all values out of range.
//!
//! serde-saphyr reads YAML: it is maintained, has no unsafe code, keeps lines, rejects duplicate keys and
//! limits the size of expanded anchors.

mod error;
mod shape;
mod strict;
mod tree;

use damper_core::{Fault, Faults};
use serde::Serialize;
pub use serde_json::Value;

pub use self::error::{Error, Problem};
pub use self::shape::{add_others, read};
pub use self::tree::Lines;
use self::tree::{SyntaxError, Tree};

/// A document and its place in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Document<T> {
    /// Number of the document in the text, from 1.
    pub number: usize,
    /// Its first line in the text, from 1.
    pub line: u64,
    /// Content.
    pub content: T,
}

/// Reads the documents of a text: separated by `---`, a list of documents, or consecutive JSON objects.
///
/// `read` adds the faults of a document by path.
///
/// # Errors
/// All faults of all documents; a text without a document. A syntax error may hide the rest.
pub fn parse<T>(
    text: &str,
    mut read: impl FnMut(Value, &mut Faults) -> Option<T>,
) -> Result<Vec<Document<T>>, Error> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    for (i, document) in tree::documents(&mut text.as_bytes()).enumerate() {
        let number = i + 1;
        match document {
            Ok(Tree { value, lines }) => {
                let content = checked(value, &lines, Some(number), &mut read, &mut problems);
                let line = lines.of("");
                documents.extend(content.map(|content| Document { number, line, content }));
            }
            Err(SyntaxError { line, problem }) => {
                problems.push(Problem { document: Some(number), line, path: String::new(), problem });
            }
        }
    }
    if documents.is_empty() && problems.is_empty() {
        problems.push(Problem::of_text("no document"));
    }
    if problems.is_empty() { Ok(documents) } else { Err(Error { problems }) }
}

/// Reads a text of one document; a text without a document is an empty map.
///
/// # Errors
/// All faults, as [`parse`]; a text of several documents.
pub fn parse_one<T>(text: &str, read: impl FnMut(Value, &mut Faults) -> Option<T>) -> Result<T, Error> {
    let mut bytes = text.as_bytes();
    let mut documents = tree::documents(&mut bytes);
    let mut problems = Vec::new();
    let content = match documents.next() {
        None => checked(Value::Object(Default::default()), &Lines::default(), None, read, &mut problems),
        Some(Ok(Tree { value, lines })) => checked(value, &lines, None, read, &mut problems),
        Some(Err(SyntaxError { line, problem })) => {
            problems.push(Problem { line, ..Problem::of_text(&problem) });
            None
        }
    };
    if documents.next().is_some() {
        problems.push(Problem::of_text("must be one document"));
    }
    match content {
        Some(content) if problems.is_empty() => Ok(content),
        _ => Err(Error { problems }),
    }
}

/// Reads a document; `None` if it has faults, which are added to the problems with their lines.
fn checked<T>(
    value: Value,
    lines: &Lines,
    document: Option<usize>,
    mut read: impl FnMut(Value, &mut Faults) -> Option<T>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let mut faults = Faults::none();
    let content = read(value, &mut faults);
    let problem =
        |fault: &Fault| Problem { document, line: lines.known(&fault.path), ..Problem::from(fault) };
    let mut found: Vec<_> = faults.iter().map(problem).collect();
    found.sort_by_key(|problem| problem.line);
    problems.extend(found);
    content.filter(|_| faults.is_empty())
}

/// Returns the lines of the fields of each document. Separate from [`parse`], since valid texts seldom need
/// them, and they are larger than the documents.
///
/// Omits documents that are not YAML.
#[must_use]
pub fn field_lines(bytes: &[u8]) -> Vec<Lines> {
    tree::documents(&mut &*bytes).filter_map(|document| Some(document.ok()?.lines)).collect()
}

/// Returns the bytes of a file as text.
///
/// # Errors
/// The place of the first byte that is not UTF-8.
pub fn utf8(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.iter().take(error.valid_up_to());
        let line = 1 + before.clone().filter(|byte| **byte == b'\n').count();
        let column = 1 + before.rev().take_while(|byte| **byte != b'\n').count();
        let problem = Problem::of_text(&format!("byte {column} of the line is not UTF-8"));
        Error { problems: vec![Problem { line: u64::try_from(line).ok(), ..problem }] }
    })
}

/// Writes a value as one YAML document. The value must have string keys and plain values.
///
/// # Panics
/// If the value has other keys.
#[must_use]
pub fn to_yaml(value: &impl Serialize) -> String {
    serde_saphyr::to_string(value).expect("only string keys and plain values")
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
