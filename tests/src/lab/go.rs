//! Programs in Go: peers and clients that are libraries of that language.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Builds the callers of the lab into a folder; nothing is built that is there already.
///
/// # Errors
/// There is no Go, or the program does not build.
pub async fn build(folder: &Path) -> anyhow::Result<PathBuf> {
    program(folder, "lab-go", ".").await
}

/// Builds the client that reads service configs, as [`build`] does the callers.
///
/// # Errors
/// There is no Go, or the program does not build.
pub async fn service_config(folder: &Path) -> anyhow::Result<PathBuf> {
    program(folder, "serviceconfig", "./serviceconfig").await
}

async fn program(folder: &Path, name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab-go");
    let program = folder.join(name);
    let mut go = Command::new(std::env::var_os("DAMPER_TEST_GO").unwrap_or_else(|| "go".into()));
    go.current_dir(source).args(["build", "-o"]).arg(&program).arg(package);
    let built = go
        .status()
        .await
        .context("the programs in tests/lab-go need Go 1.26 or later on the path, or in DAMPER_TEST_GO")?;
    ensure!(built.success(), "{package} of tests/lab-go does not build: {built}");
    Ok(program)
}
