//! `cargo xtask <task>`: runs and tests Damper on a fresh machine that has Rust and Node, and Go for the tests.
//!
//! Each task sets up what it needs before it starts: `protoc` for the etcd client comes from a crate that
//! carries it, etcd and Chromium are found or installed, everything else is built by cargo. Nothing is
//! skipped: what can neither be found nor installed is an error that names the packages.

mod bench;
mod command;
mod corpus;
mod deployment;
mod docs;
mod fuzz;
mod house;
mod lab;
mod page_speed;
mod picture;
mod release;
mod screenshots;
mod tests;
mod tools;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::command::Command;

const USAGE: &str = "usage: cargo xtask <task>

tasks:
  demo [ARGS]   the main job: control plane, page and a chain of four services under faults
                (ARGS go to `damper demo`; see `cargo xtask demo --help`)
  test          every check and test, as CI runs them
  release       the static binary that is installed, for this machine's architecture
  capacity [ARGS]  what that binary needs to serve many clients: memory, processor time
                (ARGS go to the load; see its --help)
  measure [--times] [--write FILE]  size and shape of the code base: lines, rooms, arrows, words; --times builds too
  layers        holds each crate to its table of rooms
  prose [--lower] [--commits RANGE]  finds words with a plainer replacement, wide comments, long test names;
                --lower stores what has fallen, --commits checks the subjects of a range
  bench [--short|--full] [--only ROW,...]  what Damper costs beside its peers, measured in one run;
                writes docs/benchmarks; --only help names the rows
  page-speed    how quick the page is with 10,000 rules and 60 services, in a real browser: a table
  lab [ARGS]    chains and fleets of real services under faults, each beside its peers; writes docs/benchmarks
                (--short, --full, --fleets, --only NAME, --runs N, --parallel N; `draw` only draws)
  docs          writes docs/api.md and docs/commands.md, which are made from the code
  fuzz [SECONDS]  runs each fuzz target (default 600 s) and packs its corpus again; needs rustup for a nightly
                compiler
  picture [REPORT]  draws docs/chain.svg from a demo's report, by default that of a new run
  screenshots [--images] [PATTERN]  pictures of the web UI in target/screenshots, by default all of them;
                --images also replaces those of the README, in docs/images
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let task = args.next();
    let rest: Vec<String> = args.collect();
    match task.as_deref() {
        Some("demo") => demo(&rest),
        Some("test") if rest.is_empty() => tests::run(),
        Some("release") if rest.is_empty() => release::run(),
        Some("capacity") => release::capacity(&rest),
        Some("measure") => house::measure(&rest),
        Some("layers") if rest.is_empty() => house::layers(),
        Some("prose") => house::prose(&rest),
        Some("bench") => bench::run(&rest),
        Some("page-speed") if rest.is_empty() => page_speed::run(),
        Some("lab") => lab::run(&rest),
        Some("docs") if rest.is_empty() => docs::write(),
        Some("fuzz") if rest.len() < 2 => fuzz::run(rest.first()),
        Some("picture") if rest.len() < 2 => picture(rest.first()),
        Some("screenshots") => screenshots::take(&rest),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("there is no task {other:?} with these arguments\n\n{USAGE}"),
        None => bail!("name a task\n\n{USAGE}"),
    }
}

fn demo(args: &[String]) -> Result<()> {
    damper()?.arg("demo").args(args).replace_this_process()
}

/// The damper binary, built when it is run.
fn damper() -> Result<Command> {
    Ok(Command::cargo()?.args(["run", "--package", "damper-cli", "--bin", "damper", "--"]))
}

fn picture(report: Option<&String>) -> Result<()> {
    let report = match report {
        Some(report) => report.into(),
        None => {
            let report = tools::folder()?.join("demo-report.json");
            damper()?.args(["demo", "--duration", "1s", "--report"]).arg(&report).run()?;
            report
        }
    };
    picture::draw(&report)
}
