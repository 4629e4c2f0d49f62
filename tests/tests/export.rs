//! Export and import between the stores, through the server and the command line: what is handed out is all there
//! is, byte by byte the same wherever it lies.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use damper_proto::v1::{self, rule_change};
use damper_store::{self, Change, Edit, Store};
use damper_tests::control_plane::{ControlPlane, puts};
use damper_tests::etcd::Etcd;
use damper_tests::{binary, sled};
use futures_util::StreamExt as _;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor, Value};
use tonic::Code;

/// Every part of a policy and of a guard, once.
const EVERYTHING: &str = include_str!("export/everything.yaml");

/// Names that mean something else in YAML, JSON, URLs, keys of stores or shells, and the longest one.
fn awkward_names() -> Vec<String> {
    let names = [
        "null",
        "~",
        "true",
        "no",
        "1e3",
        "0x10",
        "-",
        "--",
        "-a",
        "?",
        ":",
        "a:b",
        "#",
        "a#b",
        "&a",
        "!a",
        "|",
        ">",
        "%",
        "%2F",
        "%25",
        "@",
        "`",
        "'",
        "\"",
        "\\",
        "{}",
        "[a]",
        ",",
        "a=b",
        "$HOME",
        "..",
        ".",
        "a+b",
        ";",
        "<<",
        "2026-01-01",
        ".inf",
        "0o7",
        "1_000",
        "(a)",
        "^",
    ];
    names.map(str::to_owned).into_iter().chain(["n".repeat(255)]).collect()
}

fn awkward(name: &str) -> rule_change::Kind {
    let key = v1::Pattern {
        caller_service: name.to_owned(),
        caller_cluster: name.to_owned(),
        callee_service: name.to_owned(),
        callee_method: "p.S/M".to_owned(),
    };
    let policy = v1::Policy { mode: v1::Mode::Observe.into(), ..Default::default() };
    let owner = format!("{name} \u{202e}\n\t\u{e9}'\"");
    rule_change::Kind::Put(v1::Rule {
        key: Some(key),
        policy: Some(policy),
        owner: owner.chars().take(200).collect(),
        ..Default::default()
    })
}

/// What a command prints, if it ends well.
#[track_caller]
fn damper(server: &ControlPlane, arguments: &[&str]) -> Vec<u8> {
    let output = binary::run(server.url(), arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {said}", output.status);
    output.stdout
}

fn exported(server: &ControlPlane, format: &str) -> Vec<u8> {
    dateless(&tokio::task::block_in_place(|| damper(server, &["export", "-o", format])))
}

/// Without the line that names revision and time.
fn dateless(export: &[u8]) -> Vec<u8> {
    let lines = export.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| !line.starts_with(b"# Revision ")).flatten().copied().collect()
}

fn imported(server: &ControlPlane, file: &Path) {
    let file = file.to_str().unwrap();
    tokio::task::block_in_place(|| damper(server, &["import", "-f", file, "--reason", "restore"]));
}

/// The fields that a message has, and those that its parts have.
fn said(message: &DynamicMessage, found: &mut BTreeSet<String>) {
    for (field, value) in message.fields() {
        found.insert(field.full_name().to_owned());
        match value {
            Value::Message(part) => said(part, found),
            Value::List(parts) => {
                parts.iter().filter_map(Value::as_message).for_each(|part| said(part, found))
            }
            _ => {}
        }
    }
}

/// The fields that a message and its parts can have.
fn fields(of: &MessageDescriptor, found: &mut BTreeSet<String>) {
    for field in of.fields() {
        let new = found.insert(field.full_name().to_owned());
        if let Kind::Message(part) = field.kind()
            && new
            && !part.full_name().starts_with("google.")
        {
            fields(&part, found);
        }
    }
}

#[test]
fn everything_that_a_policy_and_a_ceiling_can_say_is_exported_here() {
    let pool = DescriptorPool::decode(damper_proto::DESCRIPTORS).unwrap();
    let of = |name: &str| pool.get_message_by_name(name).unwrap();
    let (mut can, mut is) = (BTreeSet::new(), BTreeSet::new());
    fields(&of("damper.v1.Policy"), &mut can);
    fields(&of("damper.v1.Ceiling"), &mut can);
    for change in puts(EVERYTHING) {
        let (name, bytes) = match change {
            rule_change::Kind::Put(rule) => ("damper.v1.Rule", rule.encode_to_vec()),
            rule_change::Kind::PutGuard(guard) => ("damper.v1.Guard", guard.encode_to_vec()),
            other => panic!("{other:?}"),
        };
        said(&DynamicMessage::decode(of(name), bytes.as_slice()).unwrap(), &mut is);
    }
    let missing: Vec<_> = can.difference(&is).collect();
    assert!(missing.is_empty(), "export/everything.yaml lacks {missing:?}");
}

/// Fills a store, in several revisions and by several owners.
async fn fill(server: &ControlPlane) {
    let options = |owner: &str| v1::WriteOptions { owner: owner.to_owned(), ..Default::default() };
    // As all there is, for some of its rules are beyond its own guard.
    let whole = v1::WriteOptions { prune: v1::Prune::Everything.into(), ..Default::default() };
    server.write(whole, puts(EVERYTHING)).await.unwrap();
    server.write(options(""), awkward_names().iter().map(|name| awkward(name))).await.unwrap();
    let long = |n: usize| {
        let name = |first: char| format!("{first}{n:0>254}");
        let key = v1::Pattern {
            caller_service: name('a'),
            caller_cluster: name('b'),
            callee_service: name('c'),
            callee_method: format!("p.S/{n:0>251}"),
        };
        let policy = v1::Policy { mode: v1::Mode::Observe.into(), ..Default::default() };
        rule_change::Kind::Put(v1::Rule { key: Some(key), policy: Some(policy), ..Default::default() })
    };
    server.write(options("team-m"), (0..700).map(long)).await.unwrap();
    // A guard that comes after the rules that it is against: they are cut, and still a part of the whole.
    let strict = "kind: Guard\nkey: { caller_service: '*', caller_cluster: '*', callee_service: '*', \
                  callee_method: '*' }\nceiling: { max_attempts: 1, hedge: forbid }\nowner: team-g\n";
    server.write(options(""), puts(strict)).await.unwrap();
}

/// From one store into an empty other one and into a third, in both formats.
async fn is_the_same_everywhere(from: &ControlPlane, into: &ControlPlane, third: &ControlPlane) {
    fill(from).await;
    let folder = tempfile::tempdir().unwrap();
    let (yaml, json) = (folder.path().join("all.yaml"), folder.path().join("all.json"));
    let (first_yaml, first_json) = (exported(from, "yaml"), exported(from, "json"));
    let messages = from.history().export(v1::ExportRequest::default()).await.unwrap().into_inner();
    let sizes: Vec<usize> = messages.map(|message| message.unwrap().encoded_len()).collect().await;
    assert!(sizes.len() > 1 && sizes.iter().all(|size| *size < 1 << 20), "{sizes:?}");
    let text = String::from_utf8(first_yaml.clone()).unwrap();
    for part in ["revision:", "updated_at", "updated_by"] {
        assert!(!text.contains(part), "{part}");
    }
    std::fs::write(&yaml, &first_yaml).unwrap();
    std::fs::write(&json, &first_json).unwrap();
    imported(into, &yaml);
    assert!(exported(into, "yaml") == first_yaml, "YAML by way of YAML");
    assert!(exported(into, "json") == first_json, "JSON by way of YAML");
    imported(third, &json);
    assert!(exported(third, "yaml") == first_yaml, "YAML by way of JSON");

    let listed = into.rules().list_rules(v1::ListRulesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.revision, 1, "an import is one revision");

    // An earlier revision, after everything was changed.
    let gone =
        v1::WriteOptions { prune: v1::Prune::Everything.into(), take_over: true, ..Default::default() };
    into.write(gone, [awkward("only")]).await.unwrap();
    let then = tokio::task::block_in_place(|| damper(into, &["export", "--revision", "1", "-o", "yaml"]));
    assert!(dateless(&then) == first_yaml, "what was can be had");

    // Into a store that has something only when that is said, and then nothing else is left.
    let refused = tokio::task::block_in_place(|| {
        binary::run(into.url(), &["import", "-f", yaml.to_str().unwrap(), "--reason", "restore"])
    });
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    let replace = ["import", "--replace", "-f", yaml.to_str().unwrap(), "--reason", "restore"];
    tokio::task::block_in_place(|| damper(into, &replace));
    let file = folder.path().join("out.yaml");
    tokio::task::block_in_place(|| damper(into, &["export", "--file", file.to_str().unwrap()]));
    assert!(
        dateless(&std::fs::read(&file).unwrap()) == first_yaml,
        "YAML is the form unless another is said"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_sled_exports_etcd_exports_too_byte_by_byte() {
    let etcd = Etcd::start().await;
    let (from, third) = (ControlPlane::start().await, ControlPlane::start().await);
    let into = ControlPlane::on(&format!("etcd://{}", etcd.endpoint())).await;
    is_the_same_everywhere(&from, &into, &third).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_etcd_exports_sled_exports_too_byte_by_byte() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let from = ControlPlane::on(&format!("etcd://{}", etcd.endpoint())).await;
    let third = ControlPlane::on(&format!("etcd://{}", other.endpoint())).await;
    is_the_same_everywhere(&from, &ControlPlane::start().await, &third).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nothing_at_all_is_exported_and_imported_too() {
    let (from, into) = (ControlPlane::start().await, ControlPlane::start().await);
    let messages: Vec<_> =
        from.history().export(v1::ExportRequest::default()).await.unwrap().into_inner().collect().await;
    let messages: Vec<v1::ExportResponse> = messages.into_iter().map(Result::unwrap).collect();
    assert_eq!(messages, [v1::ExportResponse::default()], "an answer always says its revision");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none.yaml");
    std::fs::write(&file, exported(&from, "yaml")).unwrap();
    into.write(v1::WriteOptions::default(), [awkward("only")]).await.unwrap();
    let wipe = ["import", "--replace", "-f", file.to_str().unwrap(), "--reason", "wipe"];
    let refused = tokio::task::block_in_place(|| binary::run(into.url(), &wipe));
    assert_eq!(refused.status.code(), Some(65), "nothing is a mistake unless it is said: {refused:?}");
    tokio::task::block_in_place(|| damper(&into, &[&wipe[..], &["--allow-empty"]].concat()));
    assert_eq!(exported(&into, "yaml"), exported(&from, "yaml"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_that_is_not_there_is_refused() {
    let server = ControlPlane::start().await;
    let request = v1::ExportRequest { revision: Some(7) };
    let refused = server.history().export(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(refused.message().contains("revision 7 does not exist yet; the newest is 0"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_can_not_be_read_is_named_and_nothing_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let unread = v1::Policy { mode: 77, ..Default::default() };
    let unread = v1::Rule { policy: Some(unread), ..Default::default() };
    let edit = |kind: &str, callee: &str, value: Vec<u8>| Edit {
        key: damper_store::key([kind, "a", "*", callee, "p.S/M"]),
        value: Some(value.into()),
        before: None,
    };
    let change = Change {
        revision: 1,
        commit: 0,
        at: SystemTime::now(),
        author: "a newer version".to_owned(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        edits: vec![edit("rules", "b", unread.encode_to_vec()), edit("guards", "c", vec![0xff])],
    };
    let sled = sled::open(&path).await;
    sled.commit(0, &[change]).await.unwrap();
    drop(sled);
    drop(sled::open(&path).await);
    let server = ControlPlane::on(&format!("sled:{}", path.display())).await;
    server.write(v1::WriteOptions::default(), [awkward("a")]).await.unwrap();
    for revision in [None, Some(1)] {
        let refused = server.history().export(v1::ExportRequest { revision }).await.unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss, "{refused:?}");
        assert!(refused.message().contains("rule a * b p.S/M, guard a * c p.S/M"), "{refused:?}");
    }
    let refused = tokio::task::block_in_place(|| binary::run(server.url(), &["export"]));
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(70), 0), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("rule a * b p.S/M"), "{refused:?}");
    // As soon as they are gone or good, all that is left is everything.
    let gone = ["rules", "delete", "a", "*", "b", "p.S/M"];
    tokio::task::block_in_place(|| damper(&server, &gone));
    tokio::task::block_in_place(|| damper(&server, &[&["guards"], &gone[1..4], &["c", "p.S/M"]].concat()));
    assert!(!exported(&server, "yaml").is_empty());
    let refused = server.history().export(v1::ExportRequest { revision: Some(2) }).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "what was then can still not be read: {refused:?}");
}
