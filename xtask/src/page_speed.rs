//! How quick the page is with 10,000 rules and 60 services that report: the binary as it is installed, a real browser.
//!
//! What is measured, and how, is said in `web-ui/speed`; here the server for it is built and filled.

use anyhow::Result;

use crate::command::{self, Command, root};
use crate::tools;

/// Prints a table.
pub(crate) fn run() -> Result<()> {
    for package in ["damper-cli", "damper-bench"] {
        Command::cargo()?.args(["build", "--release", "--locked", "--package", package, "--bins"]).run()?;
    }
    Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .in_folder("web-ui")
        .run()?;
    Command::new("npm")
        .args(["run", "--silent", "generate"])
        .env("PROTOC", command::protoc()?)
        .in_folder("web-ui")
        .run()?;
    let built = tools::target().join("release");
    Command::new(root().join(&built).join("full"))
        .args(["--", "npx", "playwright", "test", "--config", "speed", "--output"])
        .arg(tools::target().join("page-speed-failed"))
        .env("DAMPER_BINARY", root().join(&built).join("damper"))
        .env("CHROMIUM", tools::chromium()?)
        .in_folder("web-ui")
        .run()
}
