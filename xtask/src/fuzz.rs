//! Runs the fuzz targets one after the other, each for the same time.
//!
//! Each begins with its committed archive, unpacked below the build folder, and its regressions. A target that passes
//! gets its archive packed again, minimised, with the new inputs (see `fuzz/README.md`). The fuzzer needs a nightly
//! compiler, nothing else here does: rustup installs it if it is missing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::command::{Command, root};
use crate::{corpus, tools};

const DEFAULT_SECONDS: u32 = 600;
/// Longer inputs find little and cost much.
const MAX_INPUT_BYTES: u32 = 4096;
/// No input takes a hundredth of this.
const INPUT_WITHIN_SECONDS: u32 = 20;

/// Fuzzes all targets; errors if one of them fails, after the others have run.
pub(crate) fn run(seconds: Option<&String>) -> Result<()> {
    let seconds = seconds.map_or(Ok(DEFAULT_SECONDS), |seconds| {
        seconds.parse().with_context(|| format!("{seconds:?} is no number of seconds"))
    })?;
    tools::nightly()?;
    let path = tools::path_with_cargo_fuzz()?;
    let mut failed = Vec::new();
    for name in corpus::targets()? {
        eprintln!("\n=== {name}: {seconds} s");
        let inputs = tools::target().join("fuzz-corpus").join(&name);
        let target = Target { name, inputs, path: &path };
        if let Err(error) = target.run(seconds) {
            eprintln!("=== {}: FAILED: {error:#}", target.name);
            failed.push(target.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}; the inputs that failed are in fuzz/artifacts", failed.join(", "));
    }
    Ok(())
}

struct Target<'a> {
    name: String,
    inputs: PathBuf,
    path: &'a OsString,
}

impl Target<'_> {
    fn run(&self, seconds: u32) -> Result<()> {
        let archive = corpus::archive(&self.name);
        corpus::unpack(&archive, &self.inputs)?;
        self.fuzz(seconds)?;
        self.minimise()?;
        let count = corpus::pack(&self.inputs, &archive)?;
        eprintln!("=== {}: {count} inputs in {}", self.name, archive.display());
        Ok(())
    }

    /// New inputs go to the first folder; the second is only read.
    fn fuzz(&self, seconds: u32) -> Result<()> {
        self.command("run")
            .args(self.regressions())
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_WITHIN_SECONDS}"))
            .arg(format!("-max_len={MAX_INPUT_BYTES}"))
            .run()
    }

    fn minimise(&self) -> Result<()> {
        self.command("cmin").run()
    }

    /// Our own code has no unsafe code, so the sanitizers would only slow it down.
    fn command(&self, task: &str) -> Command {
        Command::new("cargo")
            .args(["+nightly", "fuzz", task, "--sanitizer", "none", "--features", "libfuzzer", &self.name])
            .arg(&self.inputs)
            .env("PATH", self.path)
            .env("CARGO_TARGET_DIR", tools::target())
            .in_folder("fuzz")
    }

    fn regressions(&self) -> Option<PathBuf> {
        let folder = root().join("fuzz/regressions").join(&self.name);
        Path::is_dir(&folder).then_some(folder)
    }
}
