//! Manifests from files, folders and standard input, each with its origin.
//!
//! All are read and checked before a request is sent. All faults are reported at once, one line each, as
//! `file.yaml:12 (document 2): policy.retry.max_attempts: must be between 1 and 10, not 11`. Faults found by the server
//! get the same form.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::Args;
use damper_proto::manifest::{self, Document, FieldLines, Problem};
use damper_proto::v1;
use serde::de::IgnoredAny;

use crate::error::{CliError, as_is};
use crate::input::files::{files_at, unreadable};
use crate::input::key;

/// The most rules, guards and queues of one command.
const MAX_DOCUMENTS: usize = 111_000;

/// Paths of manifests.
#[derive(Args, Debug)]
pub(crate) struct FileArgs {
    /// Manifest file, folder of them (*.yaml, *.yml, *.json, including subfolders) or - for standard
    /// input; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// A rule, guard or queue with its origin.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) origin: Origin,
    pub(crate) item: ManifestItem,
}

/// Content of a manifest.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are rules, the larger")]
pub(crate) enum ManifestItem {
    Rule(v1::Rule),
    Guard(v1::Guard),
    Queue(v1::Queue),
}

impl ManifestItem {
    /// Returns the rule, if it is one.
    pub(crate) fn rule(&self) -> Option<&v1::Rule> {
        if let Self::Rule(rule) = self { Some(rule) } else { None }
    }

    /// Returns the guard, if it is one.
    pub(crate) fn guard(&self) -> Option<&v1::Guard> {
        if let Self::Guard(guard) = self { Some(guard) } else { None }
    }

    /// Returns the queue, if it is one.
    pub(crate) fn queue(&self) -> Option<&v1::Queue> {
        if let Self::Queue(queue) = self { Some(queue) } else { None }
    }

    /// Returns the kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Rule(_) => "rule",
            Self::Guard(_) => "guard",
            Self::Queue(_) => "queue",
        }
    }

    /// Returns the owner.
    pub(crate) fn owner(&self) -> &str {
        match self {
            Self::Rule(rule) => &rule.owner,
            Self::Guard(guard) => &guard.owner,
            Self::Queue(queue) => &queue.owner,
        }
    }

    /// Returns the item with this owner.
    pub(crate) fn owned_by(&self, owner: &str) -> Self {
        let owner = owner.to_owned();
        match self.clone() {
            Self::Rule(rule) => Self::Rule(v1::Rule { owner, ..rule }),
            Self::Guard(guard) => Self::Guard(v1::Guard { owner, ..guard }),
            Self::Queue(queue) => Self::Queue(v1::Queue { owner, ..queue }),
        }
    }

    /// Returns the key; `None` for a queue.
    pub(crate) fn key(&self) -> Option<&v1::Pattern> {
        match self {
            Self::Rule(rule) => rule.key.as_ref(),
            Self::Guard(guard) => guard.key.as_ref(),
            Self::Queue(_) => None,
        }
    }

    /// Returns the revision at which it was read; 0 = not set.
    pub(crate) fn revision(&self) -> u64 {
        match self {
            Self::Rule(rule) => rule.revision,
            Self::Guard(guard) => guard.revision,
            Self::Queue(queue) => queue.revision,
        }
    }

    /// Returns the four words of the key, with the kind unless it is a rule; of a queue its name.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Rule(_) => key::words(self.key()),
            Self::Guard(_) => format!("guard {}", key::words(self.key())),
            Self::Queue(queue) => format!("queue {}", queue.name),
        }
    }
}

/// Place of a manifest.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    file: String,
    line: Option<u64>,
    document: Option<usize>,
}

impl Origin {
    /// File and line.
    pub(crate) fn at(&self, line: u64) -> String {
        format!("{}:{line}", self.file)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match self.document {
            Some(document) => write!(f, " (document {document})"),
            None => Ok(()),
        }
    }
}

/// Returns the only resource of sources; `of` selects the kind.
pub(crate) fn only<'a, T>(
    manifests: &'a [Manifest],
    noun: &str,
    of: impl Fn(&'a ManifestItem) -> Option<&'a T>,
) -> Result<&'a T, CliError> {
    let [Manifest { origin, item }] = manifests else {
        let several = manifests.len();
        return Err(CliError::data(format_args!("put writes one {noun}, found {several}; use damper apply")));
    };
    let kind = item.kind();
    of(item).ok_or_else(|| CliError::data(format_args!("{origin}: is a {kind}; use damper {kind}s put")))
}

/// Reads all manifests in the given order, folders by name. Errors on a source without any.
pub(crate) fn read(args: &FileArgs) -> Result<Vec<Manifest>, CliError> {
    read_set(args, false)
}

/// Like `read_files`, but accepts sources without manifests.
pub(crate) fn read_set(args: &FileArgs, may_be_empty: bool) -> Result<Vec<Manifest>, CliError> {
    read_all(args, may_be_empty, &mut |_| {})
}

/// All manifests and the places of their fields.
pub(crate) fn read_with_lines(args: &FileArgs) -> Result<(Vec<Manifest>, Vec<FieldLines>), CliError> {
    let mut lines = Vec::new();
    let manifests = read_all(args, false, &mut |bytes| lines.extend(manifest::field_lines(bytes)))?;
    Ok((manifests, lines))
}

/// Reads all manifests; calls `seen` with every text that contains any.
fn read_all(
    args: &FileArgs,
    may_be_empty: bool,
    seen: &mut dyn FnMut(&[u8]),
) -> Result<Vec<Manifest>, CliError> {
    let mut manifests = Vec::new();
    let mut faults = Vec::new();
    each_text(&args.files, may_be_empty, &mut |file, bytes| {
        if !(may_be_empty && documents(bytes) == 0) {
            seen(bytes);
            take(file, bytes, &mut manifests, &mut faults);
        }
    })?;
    faults.extend(repetitions(&manifests));
    if faults.is_empty() { Ok(manifests) } else { Err(CliError::Data(faults)) }
}

/// Calls `read` with the name and the bytes of each file, in the given order, folders by name.
pub(crate) fn each_text(
    files: &[PathBuf],
    may_be_empty: bool,
    read: &mut dyn FnMut(&str, &[u8]),
) -> Result<(), CliError> {
    let mut counted = 0;
    for path in files {
        if path.as_os_str() == "-" {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map_err(CliError::io("standard input"))?;
            count("standard input", &bytes, &mut counted)?;
            read("standard input", &bytes);
            continue;
        }
        let files = files_at(path)?;
        if files.is_empty() && !may_be_empty {
            return Err(CliError::data(format_args!("{}: no *.yaml, *.yml or *.json file", path.display())));
        }
        for file in files {
            let bytes = std::fs::read(&file).map_err(|error| unreadable(&file, error))?;
            let name = file.display().to_string();
            count(&name, &bytes, &mut counted)?;
            read(&name, &bytes);
        }
    }
    Ok(())
}

/// Adds the number of documents of a file, and rejects too many before parsing takes minutes. A server
/// accepts fewer, unless its limits are raised.
fn count(file: &str, bytes: &[u8], counted: &mut usize) -> Result<(), CliError> {
    let before = *counted;
    *counted += documents(bytes);
    let limit = MAX_DOCUMENTS;
    if *counted <= limit {
        return Ok(());
    }
    let together = if before == 0 { "" } else { " with those before it" };
    Err(CliError::data(format_args!(
        "{file}: {counted} documents{together}, at most {limit} rules, guards and queues"
    )))
}

/// Counts the documents of a text by their outer marks: never more than there are, and all in the usual forms
/// (documents after `---`, items of a list, a JSON array, JSON objects).
fn documents(bytes: &[u8]) -> usize {
    if bytes.trim_ascii_start().starts_with(b"[")
        && let Ok(items) = serde_json::from_slice::<Vec<IgnoredAny>>(bytes)
    {
        return items.len();
    }
    if bytes.trim_ascii_start().starts_with(b"{") {
        let objects = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
        let count = objects.take_while(Result::is_ok).count();
        if count > 1 {
            return count;
        }
    }
    let (mut documents, mut begun, mut list) = (0, false, false);
    for line in bytes.split(|byte| *byte == b'\n') {
        let marks = |mark: &[u8]| {
            line.strip_prefix(mark).filter(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
        };
        let (line, item) = match (marks(b"---"), marks(b"-")) {
            (Some(rest), _) => {
                (begun, list) = (false, false);
                (rest, false)
            }
            (None, item) => (line, item.is_some()),
        };
        if line.trim_ascii().is_empty() || line.trim_ascii_start().starts_with(b"#") || line.starts_with(b"%")
        {
            continue;
        }
        if !begun {
            (begun, list) = (true, item);
            documents += 1;
        } else if list && item {
            documents += 1;
        }
    }
    documents
}

fn take(file: &str, bytes: &[u8], manifests: &mut Vec<Manifest>, faults: &mut Vec<String>) {
    match manifest::parse_bytes(bytes) {
        Ok(documents) => {
            manifests.extend(documents.into_iter().filter_map(|document| read_one(file, document)))
        }
        Err(error) => faults.extend(error.problems.into_iter().map(|problem| fault(file, problem))),
    }
}

fn read_one(file: &str, Document { number, line, manifest }: Document) -> Option<Manifest> {
    let origin = Origin { file: file.to_owned(), line: Some(line), document: Some(number) };
    let item = match manifest {
        manifest::Manifest::Rule(rule) => ManifestItem::Rule(rule),
        manifest::Manifest::Guard(guard) => ManifestItem::Guard(guard),
        manifest::Manifest::Queue(queue) => ManifestItem::Queue(queue),
        // Parsing rejects unknown kinds.
        _ => return None,
    };
    Some(Manifest { origin, item })
}

/// Returns a fault with its place in the file.
pub(crate) fn fault(file: &str, Problem { document, line, path, problem }: Problem) -> String {
    let origin = Origin { file: file.to_owned(), line, document };
    match path.as_str() {
        "" => format!("{origin}: {problem}"),
        path => format!("{origin}: {path}: {problem}"),
    }
}

/// Returns a fault for each repeated key.
fn repetitions(manifests: &[Manifest]) -> Vec<String> {
    let mut first = HashMap::new();
    let mut faults = Vec::new();
    for Manifest { origin, item } in manifests {
        match first.entry(item.words()) {
            Entry::Vacant(free) => {
                free.insert(origin);
            }
            Entry::Occupied(taken) => {
                let path = if item.key().is_some() { "key" } else { "name" };
                faults.push(format!(
                    "{origin}: {path}: {} is also the {path} at {}",
                    taken.key(),
                    taken.get()
                ));
            }
        }
    }
    faults
}

/// Maps the path of a field in a request (`changes[17].put.policy.mode`, `rule.policy.mode`, `queue.owner`)
/// to the field of its manifest.
pub(crate) fn locate(manifests: &[Manifest], field: &str) -> String {
    let Some((index, rest)) = split(field) else { return as_is(field) };
    let Some(manifest) = manifests.get(index) else { return as_is(field) };
    match rest {
        "" => manifest.origin.to_string(),
        rest => format!("{}: {rest}", manifest.origin),
    }
}

/// Returns the number of the change and the path in its manifest.
fn split(field: &str) -> Option<(usize, &str)> {
    let kinds = ["rule", "guard", "queue"];
    if let Some(rest) = kinds.into_iter().find_map(|kind| field.strip_prefix(kind)) {
        return below(rest).map(|rest| (0, rest));
    }
    let (index, rest) = field.strip_prefix("changes[")?.split_once(']')?;
    let rest = below(rest)?;
    let put = |what| rest.strip_prefix(what).and_then(below);
    let rest = ["put", "put_guard", "put_queue"].into_iter().find_map(put).unwrap_or(rest);
    Some((index.parse().ok()?, rest))
}

/// Returns the path below a prefix.
fn below(rest: &str) -> Option<&str> {
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.') }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const RULE: &str = "kind: Rule\nkey: { caller_service: a, caller_cluster: '*', callee_service: b, \
                        callee_method: p.S/M }\npolicy: { mode: observe }\n";

    fn read_files(files: &[&Path]) -> Result<Vec<Manifest>, CliError> {
        read(&FileArgs { files: files.iter().map(|file| file.to_path_buf()).collect() })
    }

    #[test]
    fn folder_is_read_in_the_order_of_names_and_only_for_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| RULE.replace("caller_service: a", &format!("caller_service: {name}"));
        for name in ["b.yaml", "a.yml", "c.json", "d.txt"] {
            std::fs::write(folder.path().join(name), named(&name[..1])).unwrap();
        }
        let read = read_files(&[folder.path()]).unwrap();
        let callers: Vec<_> = read.iter().map(|m| m.item.key().unwrap().caller_service.clone()).collect();
        assert_eq!(callers, ["a", "b", "c"]);
    }

    #[test]
    fn folders_below_are_read_too_and_hidden_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| RULE.replace("caller_service: a", &format!("caller_service: {name}"));
        for (path, caller) in
            [("b/1.yaml", "d"), ("a/z/1.yaml", "b"), ("a/1.yaml", "a"), (".git/1.yaml", "x")]
        {
            let file = folder.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, named(caller)).unwrap();
        }
        std::fs::write(folder.path().join("b.yaml"), named("c")).unwrap();
        let read = read_files(&[folder.path()]).unwrap();
        let callers: Vec<_> = read.iter().map(|m| m.item.key().unwrap().caller_service.clone()).collect();
        assert_eq!(callers, ["a", "b", "d", "c"]);
    }

    #[test]
    fn nothing_is_a_set_only_where_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let args = FileArgs { files: vec![folder.path().to_owned()] };
        assert_eq!(read_set(&args, false).unwrap_err().code(), 65);
        assert!(read_set(&args, true).unwrap().is_empty());
        std::fs::write(folder.path().join("none.yaml"), "# nothing\n").unwrap();
        assert_eq!(read_set(&args, false).unwrap_err().code(), 65);
        assert!(read_set(&args, true).unwrap().is_empty());
    }

    #[test]
    fn faults_of_all_files_are_reported_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1.yaml"), folder.path().join("2.yaml"));
        std::fs::write(&one, format!("{RULE}---\n{}", RULE.replace("observe", "observe, timeot: 1s")))
            .unwrap();
        std::fs::write(&two, [b'a', 0xff]).unwrap();
        let error = read_files(&[&one, &two]).unwrap_err();
        let text = error.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("1.yaml:") && lines[0].contains("(document 2): policy.timeot"), "{text}");
        assert!(lines[1].contains("2.yaml:1: byte 2"), "{text}");
        assert_eq!(error.code(), 65);
    }

    #[test]
    fn duplicate_key_names_both_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["1.yaml", "2.yaml"] {
            std::fs::write(folder.path().join(name), RULE).unwrap();
        }
        let text = read_files(&[folder.path()]).unwrap_err().to_string();
        assert!(text.contains("2.yaml:1 (document 1): key: a * b p.S/M is also the key at "), "{text}");
        assert!(text.ends_with("1.yaml:1 (document 1)"), "{text}");
    }

    #[test]
    fn documents_are_counted_by_their_outer_marks() {
        let table = [
            ("", 0),
            ("# nothing\n---\n\n", 0),
            ("kind: Rule\nkey: x\n", 1),
            ("%YAML 1.2\n---\nkind: Rule\n--- # two\nkind: Rule\n---\n", 2),
            ("---\r\nkind: Rule\r\n---\r\nkind: Rule\r\n", 2),
            ("--- {kind: Rule}\n--- {kind: Rule}", 2),
            ("- kind: Rule\n  key: x\n-\n  kind: Rule\n---\n- kind: Rule\n", 3),
            ("kind: Rule\nallow:\n- UNAVAILABLE\n- ABORTED\n", 1),
            ("----\n---x\n-x\n", 1),
            (" [{\"kind\": \"Rule\"}, {\"kind\": \"Rule\"}]\n", 2),
            ("[{]", 1),
            ("{\"kind\": \"Rule\"}\n{\"kind\": \"Rule\"}\n", 2),
        ];
        for (text, count) in table {
            assert_eq!(documents(text.as_bytes()), count, "{text:?}");
        }
    }

    #[test]
    fn document_count_matches_the_parser() {
        let texts = [
            [RULE; 3].join("---\n"),
            format!("[{}]", [r#"{"kind":"Rule"}"#; 3].join(",")),
            format!("---\n{RULE}---\n# none\n"),
            [r#"{"kind":"Rule"}"#; 3].join("\n"),
        ];
        for text in texts {
            let read = match manifest::parse(&text) {
                Ok(documents) => documents.len(),
                Err(error) => error.problems.iter().filter_map(|problem| problem.document).max().unwrap(),
            };
            assert_eq!(documents(text.as_bytes()), read, "{text}");
        }
    }

    #[test]
    fn missing_file_and_folder_without_manifests_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = read_files(&[&folder.path().join("no.yaml")]).unwrap_err();
        assert_eq!(missing.code(), 66);
        assert!(missing.to_string().contains("no.yaml"));
        assert_eq!(read_files(&[folder.path()]).unwrap_err().code(), 65);
    }

    #[test]
    fn fields_of_a_request_are_those_of_the_manifest() {
        let origin = |n| Origin { file: "f.yaml".into(), line: Some(n), document: Some(2) };
        let manifests =
            [1, 9].map(|n| Manifest { origin: origin(n), item: ManifestItem::Rule(v1::Rule::default()) });
        let table = [
            ("changes[1].put.policy.mode", "f.yaml:9 (document 2): policy.mode"),
            ("changes[1].expected_revision", "f.yaml:9 (document 2): expected_revision"),
            ("changes[0].put", "f.yaml:1 (document 2)"),
            ("rule.key.callee_method", "f.yaml:1 (document 2): key.callee_method"),
            ("rule", "f.yaml:1 (document 2)"),
            ("guard.ceiling.max_attempts", "f.yaml:1 (document 2): ceiling.max_attempts"),
            ("changes[1].put_guard.owner", "f.yaml:9 (document 2): owner"),
            ("changes[1].put_guard", "f.yaml:9 (document 2)"),
            ("changes[1].put_queue.lease", "f.yaml:9 (document 2): lease"),
            ("queue.policy.retry", "f.yaml:1 (document 2): policy.retry"),
            ("guards", "guards"),
            ("changes[7].put.policy", "changes[7].put.policy"),
            ("changes[x].put", "changes[x].put"),
            ("rules", "rules"),
            ("header.reason", "--reason"),
        ];
        for (field, located) in table {
            assert_eq!(locate(&manifests, field), located);
        }
    }
}
