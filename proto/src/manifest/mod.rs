//! Manifests: messages of the wire as YAML or JSON, as operators write and read them.
//!
//! ```yaml
//! kind: Rule
//! key: { caller_service: checkout, caller_cluster: "*", callee_service: inventory, callee_method: "*" }
//! policy: { mode: observe, retry: { max_attempts: 3 } }
//! ```
//!
//! A document is a rule, a guard (`kind: Guard`, with `ceiling` and `owner`) or a queue (`kind: Queue`, with
//! `name` in place of `key`). A text contains any number of documents (separated by `---`, a list of
//! documents, or consecutive JSON objects). All other messages of the package are printed in the same form:
//! all are `Serialize`. Fields, enums and oneofs have the names of the .proto files; unknown fields are
//! rejected.

pub(crate) mod form;
mod settings;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use damper_core::job::Queue;
use damper_core::{Faults, Guard, Rule};
use damper_document::Value;
pub use damper_document::{Error, Lines as FieldLines, Problem, field_lines};
use serde::Serialize;

pub use self::settings::{Differing, Settings};
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
    /// `kind: Queue`
    Queue(v1::Queue),
}

/// Content of documents as core types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Rules, in order of their documents.
    pub rules: Vec<Rule>,
    /// Guards, in order of their documents.
    pub guards: Vec<Guard>,
    /// Queues, in order of their documents.
    pub queues: Vec<Queue>,
}

/// Kinds, for errors.
const KINDS: &str = "Rule, Guard or Queue";

/// Reads and checks every document of a text.
///
/// # Errors
/// All faults of all documents. A syntax error may hide the rest.
pub fn parse(text: &str) -> Result<Vec<Document>, Error> {
    let documents = damper_document::parse(text, manifest)?;
    let document = |document: damper_document::Document<Manifest>| Document {
        number: document.number,
        line: document.line,
        manifest: document.content,
    };
    Ok(documents.into_iter().map(document).collect())
}

/// Reads and checks every document of the bytes of a file.
///
/// # Errors
/// As [`parse`]; also if the bytes are not UTF-8.
pub fn parse_bytes(bytes: &[u8]) -> Result<Vec<Document>, Error> {
    damper_document::utf8(bytes).and_then(parse)
}

/// Reads a document; the result is complete only without faults.
fn manifest(mut document: Value, faults: &mut Faults) -> Option<Manifest> {
    let Some(fields) = document.as_object_mut() else {
        faults.add("", "must be a map that starts with its kind, such as kind: Rule");
        return None;
    };
    let problem = match fields.remove("kind") {
        Some(Value::String(kind)) if kind == "Rule" => {
            let convert = |rule| convert::rule(&rule).map(|_| Manifest::Rule(rule));
            return damper_document::read(document, convert, faults);
        }
        Some(Value::String(kind)) if kind == "Guard" => {
            let convert = |guard| convert::guard(&guard).map(|_| Manifest::Guard(guard));
            return damper_document::read(document, convert, faults);
        }
        Some(Value::String(kind)) if kind == "Queue" => {
            let convert = |queue| convert::queue(&queue).map(|_| Manifest::Queue(queue));
            return damper_document::read(document, convert, faults);
        }
        Some(kind) => format!("must be {KINDS}, not {kind}"),
        None => format!("required ({KINDS})"),
    };
    faults.add("kind", problem);
    None
}

/// Returns the rules, guards and queues of all documents as core types.
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
                ("rule", "key", rule.pattern().to_string())
            }),
            Manifest::Guard(wire) => convert::guard(wire).map(|guard| {
                checked.guards.push(guard.clone());
                ("guard", "key", guard.pattern().to_string())
            }),
            Manifest::Queue(wire) => convert::queue(wire).map(|queue| {
                checked.queues.push(queue.clone());
                ("queue", "name", queue.name().to_owned())
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
                let ((_, path, key), (number, line)) = (taken.key(), taken.get());
                let problem = format!("duplicate {path} {key}, as in document {number}, line {line}");
                problems.push(document.problem(path, &problem));
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

impl From<v1::Queue> for Manifest {
    fn from(queue: v1::Queue) -> Self {
        Self::Queue(queue)
    }
}

/// Writes rules, guards, queues or manifests as YAML, one document each.
#[must_use]
pub fn to_yaml<M: Clone + Into<Manifest>>(messages: &[M]) -> String {
    messages.iter().cloned().map(|message| format!("---\n{}", yaml(&message.into()))).collect()
}

/// Writes rules, guards, queues or manifests as JSON, a list of documents.
#[must_use]
pub fn to_json<M: Clone + Into<Manifest>>(messages: &[M]) -> String {
    json(&messages.iter().cloned().map(Into::into).collect::<Vec<Manifest>>())
}

/// Writes any message as one YAML document.
#[must_use]
pub fn yaml(message: &impl Serialize) -> String {
    damper_document::to_yaml(message)
}

/// Writes any message as JSON.
#[must_use]
pub fn json(message: &impl Serialize) -> String {
    serde_json::to_string_pretty(message).expect("a message has only string keys and plain values")
}

#[cfg(test)]
mod tests;
