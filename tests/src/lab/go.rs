//! Callers in Go: peers that are libraries of that language.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Builds them into a folder; nothing is built that is there already.
///
/// # Errors
/// There is no Go, or the program does not build.
pub async fn build(folder: &Path) -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab-go");
    let program = folder.join("lab-go");
    let mut go = Command::new(std::env::var_os("DAMPER_TEST_GO").unwrap_or_else(|| "go".into()));
    go.current_dir(source).args(["build", "-o"]).arg(&program).arg(".");
    let built = go.status().await.context(
        "the lab's peers gRPC, AWS, Kitex and failsafe-go need Go 1.26 or later on the path, or in DAMPER_TEST_GO",
    )?;
    ensure!(built.success(), "tests/lab-go does not build: {built}");
    Ok(program)
}
