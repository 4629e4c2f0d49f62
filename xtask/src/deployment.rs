//! Whether the manifests in deploy/kubernetes are what a cluster accepts.
//!
//! Judged by schemas from a package with a fixed version, in Node, which the page needs anyway; see
//! deploy/check/check.mjs. What the manifests and the other files say of Damper is tested in
//! tests/tests/deployment.rs.

use anyhow::Result;

use crate::command::Command;

/// Checks the checker, then the manifests.
pub(crate) fn check() -> Result<()> {
    const FOLDER: &str = "deploy/check";
    Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .in_folder(FOLDER)
        .run()?;
    Command::new("node").args(["--test", "--test-reporter", "dot"]).in_folder(FOLDER).run()?;
    Command::new("node").args(["check.mjs", "../kubernetes"]).in_folder(FOLDER).run()
}
