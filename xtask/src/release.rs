//! The two programs that are installed: static, so that they run on any Linux and in an empty image.
//!
//! Static means musl, whose C compiler the cryptography needs. The same works without this task: the two commands are
//! in docs/deployment.md. Cross-compiling is not attempted: each architecture is built on its own.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::command::{Command, root};
use crate::tools;

/// Builds both, and prints their paths and sizes.
pub(crate) fn run() -> Result<()> {
    let damper = build(&target()?, &["damper", "damper-proxy"])?;
    simulate(&damper)?;
    for binary in [&damper, &damper.with_file_name("damper-proxy")] {
        let size = std::fs::metadata(binary).with_context(|| format!("no {}", binary.display()))?.len();
        let version = Command::new(binary).arg("--version").output()?;
        println!("{}: {}, {:.1} MB", binary.display(), version.trim(), size as f64 / 1e6);
    }
    Ok(())
}

/// A simulation comes out the same in every build: the released one is held to what the tests hold theirs to.
fn simulate(binary: &Path) -> Result<()> {
    let golden = root().join("control-plane/sim/tests/golden");
    let kept = golden.join("figures.json");
    let kept = std::fs::read_to_string(&kept).with_context(|| format!("can not read {}", kept.display()))?;
    let simulate = Command::new(binary).args(["simulate", "-o", "json", "-f"]);
    let figures = simulate.arg(golden.join("scenario.yaml")).output()?;
    if figures.trim() != kept.trim() {
        bail!("{} simulates {} with other figures than those kept there", binary.display(), golden.display());
    }
    Ok(())
}

/// Measures what it needs to serve many clients; the arguments are those of the load.
pub(crate) fn capacity(args: &[String]) -> Result<()> {
    let target = target()?;
    let binary = build(&target, &["damper"])?;
    // The load starts the server through another program of its package.
    Command::cargo()?
        .args(["build", "--quiet", "--release", "--locked", "--target", &target])
        .args(["--package", "damper-bench", "--bins"])
        .run()?;
    Command::new(tools::target().join(&target).join("release/load"))
        .args(args)
        .env("DAMPER_BINARY", binary)
        .run()
}

/// Builds static programs and returns the path of `damper`.
fn build(target: &str, programs: &[&str]) -> Result<PathBuf> {
    Command::cargo()?
        .args(["build", "--release", "--locked", "--target", target, "--package", "damper-cli"])
        .args(programs.iter().flat_map(|program| ["--bin", program]))
        .run()?;
    Ok(tools::target().join(target).join("release/damper"))
}

fn target() -> Result<String> {
    if !cfg!(target_os = "linux") {
        bail!("the static binary is for Linux and built there; elsewhere `cargo build --release` makes one");
    }
    let target = format!("{ARCH}-unknown-linux-musl");
    tools::musl(&target)?;
    Ok(target)
}
