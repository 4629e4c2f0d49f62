//! What the README tells a newcomer to type works, in the order in which it stands there.
//!
//! Files shown with a name are written as shown; `damper serve` is started for the commands after it, which
//! must all succeed. The two `cargo xtask` commands are this test's own surroundings: the demo has its test in
//! the command line's crate, and `cargo xtask test` is what runs this. Commands within sentences are run here
//! too, or named with the test that runs them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use damper_tests::binary::{self, Served};
use damper_tests::etcd::Etcd;
use damper_tests::guide::{self, Block, Session};

const README: &str = include_str!("../../README.md");
const COMPARISON: &str = include_str!("../../docs/comparison.md");
const ARCHITECTURE: &str = include_str!("../../ARCHITECTURE.md");
const SECURITY: &str = include_str!("../../docs/security.md");
const POLICY: &str = include_str!("../../docs/policy.md");
const EXAMPLE: &str = include_str!("../../client-sdk/examples/adopt.rs");

/// Commands within sentences of the README and the comparison: `damper ...`
fn inline_commands() -> Vec<String> {
    let pages = format!("{README}{COMPARISON}");
    let sentences: Vec<&str> = {
        let mut in_block = false;
        pages
            .lines()
            .filter(|line| {
                let fence = line.starts_with("```");
                in_block ^= fence;
                !in_block && !fence
            })
            .collect()
    };
    let text = sentences.join("\n");
    let code = text.split('`').skip(1).step_by(2);
    code.filter(|code| code.starts_with("damper ")).map(str::to_owned).collect()
}

#[test]
fn every_command_works_as_it_stands() {
    let mut session = Session::of(README);
    let mut server: Option<Served> = None;
    let mut ran = 0;
    for command in guide::commands(README) {
        match command.as_str() {
            "cargo xtask demo" | "cargo xtask test" => {}
            "damper serve" => {
                let store = format!("sled:{}", session.folder().join("damper-data").display());
                server = Some(Served::start(&store));
            }
            export if export.starts_with("export ") => session.export(export),
            command => {
                let server = server.as_ref().expect("the server is started before it is asked");
                session.succeed(server.url(), command);
                ran += 1;
            }
        }
    }
    assert!(ran >= 8, "only {ran} commands were found in the README");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_within_a_sentence_is_run_by_a_test() {
    let elsewhere = [
        // tests/command_line in the command line's crate
        "damper stats -w",
        "damper doctor",
        // tests/demo.rs there
        "damper demo fault 5%",
    ];
    for command in inline_commands() {
        match command.as_str() {
            covered if elsewhere.contains(&covered) => {}
            "damper serve" => {}
            "damper simulate -f control-plane/sim/scenarios/balanced.yaml" => {
                let scenario = root().join("control-plane/sim/scenarios/balanced.yaml");
                let output = binary::run("", &["simulate", "-f", &scenario.display().to_string()]);
                let told = String::from_utf8_lossy(&output.stdout);
                let during = told.lines().find(|line| line.starts_with("credit") && line.contains("during"));
                assert!(during.is_some_and(|line| line.contains("99.9%") && line.contains("1.01")), "{told}");
            }
            "damper completion bash" => {
                let output = binary::run("", &["completion", "bash"]);
                assert!(output.status.success() && !output.stdout.is_empty());
            }
            "damper serve --store etcd://host1:2379,host2:2379" => {
                let etcd = Etcd::start().await;
                let server = Served::start(&format!("etcd://{}", etcd.endpoint()));
                let output = binary::run(server.url(), &["rules", "list"]);
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            unknown => panic!("no test runs `{unknown}`"),
        }
    }
}

#[test]
fn linked_files_and_headings_exist() {
    let pages =
        [("README.md", README), ("docs/comparison.md", COMPARISON), ("ARCHITECTURE.md", ARCHITECTURE)];
    for (page, text) in pages {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let own = root().join(page);
            let path = if file.is_empty() { own } else { own.with_file_name(file) };
            assert!(path.exists(), "{page} links {target}");
            let headings = || guide::anchors(&std::fs::read_to_string(&path).expect("it is text"));
            assert!(
                anchor.is_empty() || headings().iter().any(|heading| heading == anchor),
                "{page}: no heading {target}"
            );
        }
    }
}

#[test]
fn pictures_of_the_readme_exist_and_are_small() {
    const MOST_BYTES: u64 = 800_000;
    let quoted = README.split('"').filter(|text| text.starts_with("docs/images/"));
    let shown: BTreeSet<PathBuf> = quoted.map(|file| root().join(file)).collect();
    let kept = std::fs::read_dir(root().join("docs/images")).expect("the folder of the pictures");
    let kept: BTreeSet<PathBuf> = kept.map(|file| file.expect("an entry of the folder").path()).collect();
    assert_eq!(kept, shown, "docs/images and the README differ");
    let bytes: u64 = kept.iter().map(|file| file.metadata().expect("a file").len()).sum();
    assert!(bytes > 0 && bytes <= MOST_BYTES, "{bytes} bytes of pictures, {MOST_BYTES} at most");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_manifests_in_the_reference_of_policies_are_good() {
    let samples: Vec<_> = guide::blocks(POLICY).into_iter().filter(|block| block.info == "yaml").collect();
    assert_eq!(samples.len(), 4, "two rules, a guard and a queue");
    for sample in samples {
        let documents = damper_proto::manifest::parse(&sample.text);
        let documents = documents.unwrap_or_else(|error| panic!("{error}: {}", sample.text));
        damper_proto::manifest::check(&documents).unwrap_or_else(|error| panic!("{error}: {}", sample.text));
    }
}

#[test]
fn the_reference_of_policies_names_every_fate_and_links_its_own_headings() {
    for fate in damper_core::Fate::ALL.into_iter().filter(|fate| *fate != damper_core::Fate::Retry) {
        assert!(POLICY.contains(&format!("`{}`", fate.name())), "{} is not explained", fate.name());
    }
    let anchors = guide::anchors(POLICY);
    for link in POLICY.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(anchors.iter().any(|anchor| anchor == link), "no heading for #{link}");
    }
}

#[test]
fn the_rust_in_the_readme_is_the_example_that_compiles() {
    let rust: Vec<Block> = guide::blocks(README).into_iter().filter(|block| block.info == "rust").collect();
    assert!(!rust.is_empty(), "the README shows how a service adopts Damper");
    for line in rust.iter().flat_map(|block| block.text.lines()).filter(|line| !line.trim().is_empty()) {
        assert!(EXAMPLE.contains(line.trim()), "not in the example: {line}");
    }
}

/// Every name in code font is a test, or else a setting or a field.
#[test]
fn tests_named_in_the_security_page_exist() {
    let mut code = String::new();
    for folder in ["client-sdk", "control-plane", "proto", "tests", "web-ui/src"] {
        read_rust(&root().join(folder), &mut code);
    }
    let is_name = |text: &&str| {
        text.contains('_') && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let named: BTreeSet<&str> = SECURITY.split('`').skip(1).step_by(2).filter(is_name).collect();
    let is_known = |name: &&str| {
        ["fn NAME(", "NAME: ", "\"NAME\""].iter().any(|form| code.contains(&form.replace("NAME", name)))
    };
    let unknown: Vec<_> = named.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "neither a test nor a setting: {unknown:?}");
    let is_test = |name: &str| code.contains(&format!("fn {name}("));
    let (_, bounds) = SECURITY.split_once("| peer | resource | bound | test |").expect("the table of bounds");
    let rows: Vec<&str> = bounds.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        let last = row.trim_end_matches(" |").rsplit(" | ").next().expect("a cell");
        assert!(last.split('`').skip(1).step_by(2).any(is_test), "no test fills this bound: {row}");
    }
}

fn read_rust(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            read_rust(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(&path).expect("it is text"));
        }
    }
}

/// ARCHITECTURE.md shortens paths; capitals in a path stand for a name.
#[test]
fn paths_in_the_architecture_exist() {
    let short = [
        ("core", "client-sdk/core/src"),
        ("sdk", "client-sdk/src"),
        ("server", "control-plane/src"),
        ("store", "control-plane/store/src"),
        ("net", "control-plane/net/src"),
        ("queue", "control-plane/queue/src"),
        ("sim", "control-plane/sim/src"),
        ("cli", "control-plane/cli/src"),
        ("wire", "proto/proto/damper/v1"),
    ];
    let (_, tables) = ARCHITECTURE.split_once("## Invariants").expect("the section");
    let codes = tables.split('`').skip(1).step_by(2).filter(|code| code.contains('/') && !code.contains(' '));
    let is_name = |part: &str| part.trim_end_matches(".rs").bytes().all(|byte| byte.is_ascii_uppercase());
    let mut paths = 0;
    for code in codes.filter(|code| !code.trim_end_matches('/').split('/').any(is_name)) {
        let (first, rest) = code.split_once('/').expect("a slash");
        let folder = short.iter().find(|(name, _)| *name == first).map_or(first, |(_, folder)| folder);
        let path = root().join(folder).join(rest);
        let exists = path.exists() || path.with_extension("rs").exists();
        assert!(exists, "ARCHITECTURE.md names {code}: {}", path.display());
        paths += 1;
    }
    assert!(paths > 80, "only {paths} paths were found");
}
