//! Pictures of every page of the web UI, in `target/screenshots`: the real binary in the browser of the tests.
//!
//! `web-ui/screenshots` lists pages, states and sizes and starts the traffic. The README's pictures in `docs/images`
//! are copies with fewer colours. They are replaced only on request, after all pictures have been taken.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Command, root};
use crate::tools;

const SMALLER: &str = "web-ui/screenshots/smaller";
const USAGE: &str = "usage: cargo xtask screenshots [--images] [PATTERN]";

/// Takes the pictures whose names match the pattern, by default all; with `--images` replaces those of the README.
pub(crate) fn take(args: &[String]) -> Result<()> {
    let (flags, patterns): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| arg.starts_with("--"));
    if patterns.len() > 1 || flags.iter().any(|flag| *flag != "--images") {
        bail!(USAGE);
    }
    build()?;
    let taken = tools::target().join("screenshots");
    photograph(&taken, patterns.first().copied())?;
    eprintln!("pictures are in {}", taken.display());
    if flags.is_empty() { Ok(()) } else { replace_images(&taken) }
}

/// The binary is optimised, as it is installed: otherwise ten thousand rules make pages wait.
fn build() -> Result<()> {
    Command::cargo()?
        .args(["build", "--release", "--locked", "--package", "damper-cli", "--bin", "damper"])
        .run()?;
    npm_ci("web-ui")?;
    Command::new("npm")
        .args(["run", "--silent", "generate"])
        .env("PROTOC", command::protoc()?)
        .in_folder("web-ui")
        .run()
}

fn photograph(taken: &Path, pattern: Option<&String>) -> Result<()> {
    if taken.exists() {
        fs::remove_dir_all(taken).with_context(|| format!("cannot empty {}", taken.display()))?;
    }
    Command::new("npx")
        .args(["playwright", "test", "--config", "screenshots", "--output"])
        .arg(tools::target().join("screenshots-failed"))
        .args(pattern.iter().flat_map(|pattern| ["--grep", pattern]))
        .env("DAMPER_BINARY", tools::target().join("release/damper"))
        .env("DAMPER_SCREENSHOTS_TO", taken)
        .env("CHROMIUM", tools::chromium()?)
        .in_folder("web-ui")
        .run()
}

fn replace_images(taken: &Path) -> Result<()> {
    npm_ci(SMALLER)?;
    Command::new("node")
        .arg("smaller.mjs")
        .arg(taken)
        .arg(root().join("docs/images"))
        .in_folder(SMALLER)
        .run()
}

fn npm_ci(folder: &str) -> Result<()> {
    Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).in_folder(folder).run()
}
