//! Runs the fuzz targets one after the other, each for the same time.
//!
//! They begin with the committed corpus; what is new goes below the build folder, so that the repository changes
//! only when somebody decides so (see `fuzz/README.md`). The fuzzer needs a nightly compiler, nothing else here
//! does: it is installed by rustup if it is missing.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::command::{Command, root};
use crate::tools;

const DEFAULT_SECONDS: u32 = 600;
/// Longer inputs find little and cost much.
const MAX_INPUT_BYTES: u32 = 4096;
/// No input takes a hundredth of this.
const INPUT_WITHIN_SECONDS: u32 = 20;

/// Fuzzes all targets; fails where one of them fails, after the others have run.
pub(crate) fn run(seconds: Option<&String>) -> Result<()> {
    let seconds = seconds.map_or(Ok(DEFAULT_SECONDS), |seconds| {
        seconds.parse().with_context(|| format!("{seconds:?} is no number of seconds"))
    })?;
    tools::nightly()?;
    let path = tools::path_with_cargo_fuzz()?;
    let mut failed = Vec::new();
    for target in targets()? {
        let found = tools::target().join("fuzz-corpus").join(&target);
        fs::create_dir_all(&found).with_context(|| format!("can not create {}", found.display()))?;
        eprintln!("\n=== {target}: {seconds} s");
        // Our own code has no unsafe code, so the sanitizers would only slow it down.
        let fuzz = Command::new("cargo")
            .args(["+nightly", "fuzz", "run", "--sanitizer", "none", "--features", "libfuzzer", &target])
            .arg(found)
            .arg(corpus().join(&target))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_WITHIN_SECONDS}"))
            .arg(format!("-max_len={MAX_INPUT_BYTES}"))
            .env("PATH", &path)
            .env("CARGO_TARGET_DIR", tools::target());
        if let Err(error) = fuzz.in_folder("fuzz").run() {
            eprintln!("=== {target}: FAILED: {error:#}");
            failed.push(target);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}; what made them fail is in fuzz/artifacts", failed.join(", "));
    }
    Ok(())
}

/// Every target has a folder in the corpus.
fn targets() -> Result<Vec<String>> {
    let folder = corpus();
    let entries = fs::read_dir(&folder).with_context(|| format!("can not read {}", folder.display()))?;
    let mut targets = Vec::new();
    for entry in entries {
        targets.push(entry?.file_name().to_string_lossy().into_owned());
    }
    targets.sort();
    Ok(targets)
}

fn corpus() -> std::path::PathBuf {
    root().join("fuzz/corpus")
}
