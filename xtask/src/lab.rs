//! The chain lab, built optimised: chains of real services under faults, with and without Damper.
//!
//! What it runs and what it writes is in tests/src/bin/lab. Its control plane needs no page, so neither does the build.

use anyhow::Result;

use crate::command::Command;
use crate::tools;

/// `draw` makes tables and pictures anew; anything else is for a run.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let task = if args.first().is_some_and(|first| first == "draw") { None } else { Some("run") };
    let mut lab = Command::cargo()?;
    if args.iter().any(|argument| argument == "--languages") {
        lab = lab.env("DAMPER_TEST_MAVEN", tools::maven()?).env("DAMPER_TEST_PYTHON", tools::python()?);
    }
    lab.args(["run", "--quiet", "--release", "--locked", "--package", "damper-tests", "--bin", "lab", "--"])
        .args(task)
        .args(args)
        .env("DAMPER_WEB_UI", "off")
        .env("DAMPER_TEST_GO", tools::go()?)
        .run()
}
