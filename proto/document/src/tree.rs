//! Text to plain values with their lines.
//!
//! Documents are read one by one into a tree that keeps lines, because many faults are found later, when the
//! line is no longer known. JSON is read as YAML. Consecutive JSON objects, as programs print them, are not
//! YAML: each is read as a text. Duplicate keys are rejected; the size of expanded anchors is limited.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{NonFiniteFloatPolicy, Spanned};

/// One document: its values and their lines by path.
pub(crate) struct Tree {
    pub(crate) value: Value,
    pub(crate) lines: Lines,
}

/// Line of each value of a document by path.
#[derive(Debug, Default)]
pub struct Lines(HashMap<String, u64>);

impl Lines {
    /// Returns the line of the value at the path, or of its parent.
    #[must_use]
    pub fn of(&self, path: &str) -> u64 {
        self.known(path).unwrap_or_default()
    }

    /// As [`Lines::of`]; `None` for an empty text.
    pub(crate) fn known(&self, mut path: &str) -> Option<u64> {
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.0.get("").copied(),
            }
        }
    }
}

/// Invalid YAML.
pub(crate) struct SyntaxError {
    pub(crate) line: Option<u64>,
    pub(crate) problem: String,
}

/// The documents of a text in order, read on demand. A list of documents counts as several.
pub(crate) fn documents<'a>(text: &'a mut &[u8]) -> Box<dyn Iterator<Item = Result<Tree, SyntaxError>> + 'a> {
    let Some(objects) = json_objects(text) else { return Box::new(yaml_documents(text, 0)) };
    let text = *text;
    let (mut counted, mut lines) = (0, 0);
    Box::new(objects.into_iter().flat_map(move |object| {
        lines += text[counted..object.start].iter().filter(|byte| **byte == b'\n').count() as u64;
        counted = object.start;
        yaml_documents(&mut &text[object], lines).collect::<Vec<_>>()
    }))
}

/// Returns the documents of a text that begins at a later line.
fn yaml_documents<'a>(
    text: &'a mut &[u8],
    lines_before: u64,
) -> impl Iterator<Item = Result<Tree, SyntaxError>> + 'a {
    let read = serde_saphyr::read_with_options::<_, Spanned<Node>>(text, options());
    read.flat_map(move |document| match document {
        Err(error) => vec![Err(syntax_error(&error, lines_before))],
        Ok(Spanned { value: Node::List(documents), .. }) => {
            documents.into_iter().map(|document| Ok(tree(document, lines_before))).collect()
        }
        Ok(document) => vec![Ok(tree(document, lines_before))],
    })
}

/// Returns the places of the objects of a text of consecutive JSON objects; `None` for other texts. The last
/// one may be incomplete.
fn json_objects(text: &[u8]) -> Option<Vec<Range<usize>>> {
    if !text.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<IgnoredAny>();
    let (mut objects, mut begin) = (Vec::new(), 0);
    while let Some(value) = values.next() {
        begin += text[begin..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let end = if value.is_ok() { values.byte_offset() } else { text.len() };
        if text.get(begin) != Some(&b'{') {
            return None;
        }
        objects.push(begin..end);
        begin = end;
        if value.is_err() {
            break;
        }
    }
    (objects.len() > 1).then_some(objects)
}

/// Far above the needs of 100,000 rules, far below the memory of a server.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1_000_000,
            max_nodes: 20_000_000,
            max_events: 50_000_000,
            max_total_scalar_bytes: 256 << 20,
            max_depth: 32,
            max_aliases: 10_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        // `off` is a mode, not a boolean.
        strict_booleans: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

fn syntax_error(error: &serde_saphyr::Error, lines_before: u64) -> SyntaxError {
    let error = error.without_snippet();
    let text = error.to_string();
    let problem = text.split(" at line ").next().unwrap_or(&text).trim_start_matches("error: ").to_owned();
    SyntaxError { line: error.location().map(|location| lines_before + location.line()), problem }
}

fn tree(document: Spanned<Node>, lines_before: u64) -> Tree {
    let mut lines = Lines::default();
    let value = plain(document, String::new(), &mut lines);
    lines.0.values_mut().for_each(|line| *line += lines_before);
    Tree { value, lines }
}

fn plain(node: Spanned<Node>, path: String, lines: &mut Lines) -> Value {
    let line = node.referenced.line();
    let value = match node.value {
        Node::Leaf(value) => value,
        Node::List(items) => {
            let items = items.into_iter().enumerate();
            Value::Array(items.map(|(i, item)| plain(item, format!("{path}[{i}]"), lines)).collect())
        }
        Node::Map(fields) => {
            let mut map = Map::new();
            for (key, field) in fields {
                let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                map.insert(key, plain(field, at, lines));
            }
            Value::Object(map)
        }
    };
    lines.0.insert(path, line);
    value
}

enum Node {
    Leaf(Value),
    List(Vec<Spanned<Node>>),
    Map(Vec<(String, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    #[allow(clippy::cast_precision_loss, reason = "no field allows numbers of this size")]
    fn visit_i128<E: serde::de::Error>(self, value: i128) -> Result<Node, E> {
        self.visit_f64(value as f64)
    }

    #[allow(clippy::cast_precision_loss, reason = "no field allows numbers of this size")]
    fn visit_u128<E: serde::de::Error>(self, value: u128) -> Result<Node, E> {
        self.visit_f64(value as f64)
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Leaf(Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Map(fields))
    }
}
