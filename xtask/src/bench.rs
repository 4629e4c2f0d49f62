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
    let mut command = Command::new(bench)
        .args(["run", "--size", size])
        .args(&args)
        .env("DAMPER_BINARY", damper)
        .env("DAMPER_TEST_ETCD", tools::etcd()?)
        .env("PROTOC", command::protoc()?);
    if is_chosen("queue", &args) {
        command = command.env("DAMPER_TEST_POSTGRES", tools::postgres()?);
    }
    if size != "smallest" && is_chosen("queue", &args) {
        command = command.env("DAMPER_BENCH_REDIS", tools::redis()?);
    }
    if is_chosen("proxy", &args) {
        command = command.env("DAMPER_TEST_ENVOY", tools::envoy()?);
    }
    if is_chosen("proxy", &args) || (size != "smallest" && is_chosen("queue", &args)) {
        command = command.env("DAMPER_BENCH_GO", peers()?);
    }
    command.replace_this_process()
}

/// True if these arguments let the row be measured.
fn is_chosen(row: &str, args: &[&String]) -> bool {
    let is_limited = args.iter().any(|arg| arg.starts_with("--only"));
    !is_limited || args.iter().any(|arg| arg.split([',', '=']).any(|part| part == row))
}

/// The peers in Go: durable queues, and both ends of calls through proxies.
fn peers() -> Result<PathBuf> {
    let program = tools::target().join("release/bench-go");
    Command::new(tools::go()?)
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .in_folder("tests/bench/go")
        .run()?;
    Ok(program)
}

/// Builds all of a package's programs as they are installed; answers with their folder.
fn built(package: &str) -> Result<PathBuf> {
    Command::cargo()?.args(["build", "--release", "--locked", "--package", package, "--bins"]).run()?;
    Ok(tools::target().join("release"))
}
