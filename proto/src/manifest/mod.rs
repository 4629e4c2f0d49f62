//! Manifests: messages of the wire as YAML or JSON, as operators write and read them.
//!
//! ```yaml
//! kind: Rule
//! key: { caller_service: checkout, caller_cluster: "*", callee_service: inventory, callee_method: "*" }
//! policy: { mode: observe, retry: { max_attempts: 3 } }
//! ```
//!
//! A document is a rule or a guard (`kind: Guard`, with `ceiling` and `owner`). A text contains any number of
//! documents (separated by `---`, a list of documents, or consecutive JSON objects). All other messages of
//! the package are printed in the same form: all are `Serialize`. Fields, enums and oneofs have the names of
//! the .proto files; unknown fields are rejected.
//!
//! serde-saphyr reads YAML: it is maintained, has no unsafe code, keeps lines, rejects duplicate keys and
//! limits the size of expanded anchors.

mod error;
pub(crate) mod form;
mod settings;
mod shape;
mod strict;
mod tree;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use damper_core::{Faults, Guard, Rule};
use serde::Serialize;

pub use self::error::{Error, Problem};
pub use self::settings::{Differing, Settings};
use self::tree::Tree;
use crate::{convert, v1};

/// A document and its place in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Number of the document in the text, from 1.
    pub number: usize,
    /// Its first line in the text, from 1.
    pub line: u64,
    /// Content.
    pub manifest: Manifest,
}

/// A document, selected by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind")]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "nearly all documents are rules, the larger")]
pub enum Manifest {
    /// `kind: Rule`
    Rule(v1::Rule),
    /// `kind: Guard`
    Guard(v1::Guard),
}

/// Places of the fields of a document in its text.
#[derive(Debug)]
pub struct FieldLines(tree::Lines);

impl FieldLines {
    /// Returns the line of the field at a path, or of its parent.
    #[must_use]
    pub fn of(&self, path: &str) -> u64 {
        self.0.of(path)
    }
}

/// Returns the places of the fields of each document. Separate from [`parse`], since valid texts seldom need
/// them, and they are larger than the documents.
///
/// Omits documents that are not YAML.
#[must_use]
pub fn field_lines(bytes: &[u8]) -> Vec<FieldLines> {
    tree::documents(&mut &*bytes).filter_map(|document| Some(FieldLines(document.ok()?.lines))).collect()
}

/// Content of documents as core types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Rules, in order of their documents.
    pub rules: Vec<Rule>,
    /// Guards, in order of their documents.
    pub guards: Vec<Guard>,
}

/// Kinds, for errors.
const KINDS: &str = "Rule or Guard";

/// Reads and checks every document of a text.
///
/// # Errors
/// All faults of all documents. A syntax error may hide the rest.
pub fn parse(text: &str) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    for (i, document) in tree::documents(&mut text.as_bytes()).enumerate() {
        let number = i + 1;
        match document {
            Ok(document) => documents.extend(read(number, document, &mut problems)),
            Err(tree::SyntaxError { line, problem }) => {
                problems.push(Problem { document: Some(number), line, path: String::new(), problem });
            }
        }
    }
    if documents.is_empty() && problems.is_empty() {
        let problem = "no document".to_owned();
        problems.push(Problem { document: None, line: None, path: String::new(), problem });
    }
    if problems.is_empty() { Ok(documents) } else { Err(Error { problems }) }
}

/// Reads and checks every document of the bytes of a file.
///
/// # Errors
/// As [`parse`]; also if the bytes are not UTF-8.
pub fn parse_bytes(bytes: &[u8]) -> Result<Vec<Document>, Error> {
    std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to())).and_then(parse)
}

fn not_utf8(bytes: &[u8], at: usize) -> Error {
    let before = bytes.iter().take(at);
    let line = 1 + before.clone().filter(|byte| **byte == b'\n').count();
    let column = 1 + before.rev().take_while(|byte| **byte != b'\n').count();
    let problem = format!("byte {column} of the line is not UTF-8");
    let line = u64::try_from(line).ok();
    Error { problems: vec![Problem { document: None, line, path: String::new(), problem }] }
}

/// Reads one document; adds its faults to the problems.
fn read(number: usize, Tree { value, lines }: Tree, problems: &mut Vec<Problem>) -> Option<Document> {
    let mut faults = Faults::none();
    let manifest = shape::manifest(value, &mut faults);
    let mut found: Vec<_> = faults
        .iter()
        .map(|fault| Problem {
            document: Some(number),
            line: Some(lines.of(&fault.path)),
            path: fault.path.clone(),
            problem: fault.problem.clone(),
        })
        .collect();
    found.sort_by_key(|problem| problem.line);
    problems.extend(found);
    let manifest = manifest.filter(|_| faults.is_empty())?;
    Some(Document { number, line: lines.of(""), manifest })
}

/// Returns the rules and guards of all documents as core types.
///
/// # Errors
/// All faults of all documents, and every duplicate key of a kind, with both documents.
pub fn check(documents: &[Document]) -> Result<Checked, Error> {
    let mut checked = Checked::default();
    let mut first = HashMap::new();
    let mut problems = Vec::new();
    for document in documents {
        let read = match &document.manifest {
            Manifest::Rule(wire) => convert::rule(wire).map(|rule| {
                checked.rules.push(rule.clone());
                ("rule", rule.pattern().clone())
            }),
            Manifest::Guard(wire) => convert::guard(wire).map(|guard| {
                checked.guards.push(guard.clone());
                ("guard", guard.pattern().clone())
            }),
        };
        match read.map(|key| first.entry(key)) {
            Err(faults) => {
                problems.extend(faults.iter().map(|fault| document.problem(&fault.path, &fault.problem)));
            }
            Ok(Entry::Vacant(free)) => {
                free.insert((document.number, document.line));
            }
            Ok(Entry::Occupied(taken)) => {
                let ((_, key), (number, line)) = (taken.key(), taken.get());
                let problem = format!("duplicate key {key}, as in document {number}, line {line}");
                problems.push(document.problem("key", &problem));
            }
        }
    }
    if problems.is_empty() { Ok(checked) } else { Err(Error { problems }) }
}

impl Document {
    fn problem(&self, path: &str, problem: &str) -> Problem {
        Problem {
            document: Some(self.number),
            line: Some(self.line),
            path: path.to_owned(),
            problem: problem.to_owned(),
        }
    }
}

impl From<v1::Rule> for Manifest {
    fn from(rule: v1::Rule) -> Self {
        Self::Rule(rule)
    }
}

impl From<v1::Guard> for Manifest {
    fn from(guard: v1::Guard) -> Self {
        Self::Guard(guard)
    }
}

/// Writes rules, guards or manifests as YAML, one document each.
#[must_use]
pub fn to_yaml<M: Clone + Into<Manifest>>(messages: &[M]) -> String {
    messages.iter().cloned().map(|message| format!("---\n{}", yaml(&message.into()))).collect()
}

/// Writes rules, guards or manifests as JSON, a list of documents.
#[must_use]
pub fn to_json<M: Clone + Into<Manifest>>(messages: &[M]) -> String {
    json(&messages.iter().cloned().map(Into::into).collect::<Vec<Manifest>>())
}

/// Writes any message as one YAML document.
#[must_use]
pub fn yaml(message: &impl Serialize) -> String {
    serde_saphyr::to_string(message).expect("a message has only string keys and plain values")
}

/// Writes any message as JSON.
#[must_use]
pub fn json(message: &impl Serialize) -> String {
    serde_json::to_string_pretty(message).expect("a message has only string keys and plain values")
}

#[cfg(test)]
mod tests;
