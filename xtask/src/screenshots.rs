//! Pictures of every page of the operators' page, in `docs/screenshots`: the real binary with its built-in page, in the
//! browser of the tests.
//!
//! Which pages, states and sizes, and where the traffic comes from, is said in `web-ui/screenshots`. The pictures are
//! taken into the build folder first and then made small, so that a failure leaves the committed ones as they are.

use std::fs;

use anyhow::{Context as _, Result};

use crate::command::{Command, root};
use crate::tools;

const FOLDER: &str = "web-ui/screenshots/smaller";

/// Takes those whose names match the pattern, by default all.
pub(crate) fn take(pattern: Option<&String>) -> Result<()> {
    // As it is installed: unoptimised, ten thousand rules make pages wait.
    Command::cargo()?
        .args(["build", "--release", "--locked", "--package", "damper-cli", "--bin", "damper"])
        .run()?;
    for folder in ["web-ui", FOLDER] {
        Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .in_folder(folder)
            .run()?;
    }
    Command::new("npm")
        .args(["run", "--silent", "generate"])
        .env("PROTOC", tools::protoc()?)
        .in_folder("web-ui")
        .run()?;
    let taken = tools::target().join("screenshots");
    if taken.exists() {
        fs::remove_dir_all(&taken).with_context(|| format!("can not empty {}", taken.display()))?;
    }
    Command::new("npx")
        .args(["playwright", "test", "--config", "screenshots", "--output"])
        .arg(tools::target().join("screenshots-failed"))
        .args(pattern.iter().flat_map(|pattern| ["--grep", pattern]))
        .env("DAMPER_BINARY", tools::target().join("release/damper"))
        .env("DAMPER_SCREENSHOTS_TO", &taken)
        .env("CHROMIUM", tools::chromium()?)
        .in_folder("web-ui")
        .run()?;
    Command::new("node")
        .arg("smaller.mjs")
        .arg(&taken)
        .arg(root().join("docs/screenshots"))
        .in_folder(FOLDER)
        .run()
}
