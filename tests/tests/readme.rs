//! What the README tells a newcomer to type works, in the order in which it stands there.
//!
//! Files shown with a name are written as shown; `damper serve` is started for the commands after it; every
//! other `damper` line must succeed. The two `cargo xtask` commands are this test's own surroundings: the
//! demo has its test in the command line's crate, and `cargo xtask test` is what runs this.

use std::process::{Command, Stdio};

use damper_tests::binary::{self, Served};

const README: &str = include_str!("../../README.md");
const EXAMPLE: &str = include_str!("../../client-sdk/examples/adopt.rs");

/// A fenced block: the words after the fence, and its lines.
struct Block {
    info: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in README.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some(Block { info: info.to_owned(), text: String::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

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
    let binary = binary::damper();
    let beside = binary.parent().expect("the binary lies in a folder");
    let path = std::env::join_paths(
        std::iter::once(beside.to_path_buf())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )
    .expect("a search path");
    let mut server: Option<Served> = None;
    let mut ran = 0;
    for command in commands() {
        match command.as_str() {
            "cargo xtask demo" | "cargo xtask test" => {}
            "damper serve" => {
                let store = format!("sled:{}", folder.path().join("damper-data").display());
                server = Some(Served::start(&store));
            }
            command => {
                let server = server.as_ref().expect("the server is started before it is asked");
                let output = Command::new("sh")
                    .args(["-c", command])
                    .current_dir(folder.path())
                    .env("PATH", &path)
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

#[test]
fn the_rust_in_the_readme_is_the_example_that_compiles() {
    let rust: Vec<Block> = blocks().into_iter().filter(|block| block.info == "rust").collect();
    assert!(!rust.is_empty(), "the README shows how a service adopts Damper");
    for line in rust.iter().flat_map(|block| block.text.lines()).filter(|line| !line.trim().is_empty()) {
        assert!(EXAMPLE.contains(line.trim()), "not in the example: {line}");
    }
}
