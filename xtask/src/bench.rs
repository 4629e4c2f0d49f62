//! What Damper costs beside its peers: builds what is measured, without the features that only tests need, and
//! measures it.
//!
//! Each package is built by itself: built together they would share features, and a test clock in tokio or an
//! unused store would be measured along.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::command::{self, Command};
use crate::tools;

/// Measures the rows that are asked for; `--short` (the default), `--full` and `--smallest` say how much.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (sizes, args): (Vec<_>, Vec<_>) =
        args.iter().partition(|arg| matches!(arg.as_str(), "--short" | "--full" | "--smallest"));
    let size = match sizes.as_slice() {
        [] => "short",
        [size] => size.trim_start_matches("--"),
        _ => bail!("one of --short, --full and --smallest"),
    };
    let damper = built("damper-cli")?.join("damper");
    let bench = built("damper-bench")?.join("bench");
    Command::new(bench)
        .args(["run", "--size", size])
        .args(args)
        .env("DAMPER_BINARY", damper)
        .env("DAMPER_TEST_ETCD", tools::etcd()?)
        .env("PROTOC", command::protoc()?)
        .replace_this_process()
}

/// Builds all of a package's programs as they are installed; answers with their folder.
fn built(package: &str) -> Result<PathBuf> {
    Command::cargo()?.args(["build", "--release", "--locked", "--package", package, "--bins"]).run()?;
    Ok(tools::target().join("release"))
}
