//! What the README tells a newcomer to type works, in the order in which it stands there.
//!
//! Files shown with a name are written as shown; `damper serve` is started for the commands after it, which
//! must all succeed. The two `cargo xtask` commands are this test's own surroundings: the demo has its test in
//! the command line's crate, and `cargo xtask test` is what runs this. Commands within sentences are run here
//! too, or named with the test that runs them.

use std::process::{Command, Stdio};

use damper_tests::binary::{self, Served};
use damper_tests::etcd::Etcd;

const README: &str = include_str!("../../README.md");
const POLICY: &str = include_str!("../../docs/policy.md");
const EXAMPLE: &str = include_str!("../../client-sdk/examples/adopt.rs");

/// A fenced block: the words after the fence, and its lines.
struct Block {
    info: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    blocks_of(README)
}

fn blocks_of(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some(Block { info: info.to_owned(), text: String::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// Commands within sentences: `damper ...`
fn inline_commands() -> Vec<String> {
    let sentences: Vec<&str> = {
        let mut in_block = false;
        README
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

/// The lines of the shell blocks, without their comments.
fn commands() -> Vec<String> {
    let shell = blocks().into_iter().filter(|block| block.info == "sh");
    let lines: Vec<String> =
        shell.flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let bare = lines.iter().map(|line| line.split('#').next().unwrap_or_default().trim().to_owned());
    bare.filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_command_works_as_it_stands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for block in blocks() {
        if let Some(name) = block.info.strip_prefix("yaml ") {
            std::fs::write(folder.path().join(name), block.text).expect("a file can be written");
        }
    }
    let built_in = binary::damper().parent().expect("the binary lies in a folder");
    std::fs::create_dir(folder.path().join("target")).expect("a folder can be made");
    std::os::unix::fs::symlink(built_in, folder.path().join("target/debug")).expect("a link can be made");
    let mut exports = String::new();
    let mut server: Option<Served> = None;
    let mut ran = 0;
    for command in commands() {
        match command.as_str() {
            "cargo xtask demo" | "cargo xtask test" => {}
            "damper serve" => {
                let store = format!("sled:{}", folder.path().join("damper-data").display());
                server = Some(Served::start(&store));
            }
            export if export.starts_with("export ") => exports += &format!("{export}\n"),
            command => {
                let server = server.as_ref().expect("the server is started before it is asked");
                let output = Command::new("sh")
                    .args(["-c", &format!("{exports}{command}")])
                    .current_dir(folder.path())
                    .env("DAMPER_SERVER", server.url())
                    .stdin(Stdio::null())
                    .output()
                    .expect("a shell");
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "`{command}`: {} {said}", output.status);
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
        // tests/demo.rs there
        "damper demo fault 5%",
    ];
    for command in inline_commands() {
        match command.as_str() {
            covered if elsewhere.contains(&covered) => {}
            "damper serve" => {}
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
fn every_file_that_the_readme_links_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let targets = README.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for target in targets.filter(|target| !target.contains("://")) {
        assert!(root.join(target).exists(), "the README links {target}");
    }
}

#[test]
fn the_manifests_in_the_reference_of_policies_are_good() {
    let samples: Vec<_> = blocks_of(POLICY).into_iter().filter(|block| block.info == "yaml").collect();
    assert_eq!(samples.len(), 3, "two rules and a guard");
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
    let headings: Vec<_> = POLICY.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let anchors: Vec<_> = headings.iter().map(|heading| heading.to_lowercase().replace(' ', "-")).collect();
    for link in POLICY.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(anchors.iter().any(|anchor| anchor == link), "no heading for #{link}");
    }
}

#[test]
fn the_rust_in_the_readme_is_the_example_that_compiles() {
    let rust: Vec<Block> = blocks().into_iter().filter(|block| block.info == "rust").collect();
    assert!(!rust.is_empty(), "the README shows how a service adopts Damper");
    for line in rust.iter().flat_map(|block| block.text.lines()).filter(|line| !line.trim().is_empty()) {
        assert!(EXAMPLE.contains(line.trim()), "not in the example: {line}");
    }
}
