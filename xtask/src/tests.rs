//! Every check and test, in the order in which a mistake is cheapest to find.
//!
//! All steps run also when one has failed, so that one run shows everything that is wrong.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::command::Command;
use crate::{deployment, docs, house, tools};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 11] = [
    ("format", format),
    ("layers", house::layers),
    ("prose", || house::prose(&[])),
    ("clippy", clippy),
    ("licences and sources of dependencies", deny),
    ("page: types, lint, unit tests", page),
    ("manifests for Kubernetes", deployment::check),
    ("tests", tests),
    ("simulations in an optimised build", simulations),
    ("references made from the code", docs::check),
    ("documentation", documentation),
];

/// Runs all steps; fails if any of them failed.
pub(crate) fn run() -> Result<()> {
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        eprintln!("\n=== {name}");
        let started = Instant::now();
        match step() {
            Ok(()) => eprintln!("=== {name}: ok, {} s", started.elapsed().as_secs()),
            Err(error) => {
                eprintln!("=== {name}: FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    eprintln!("\nall checks and tests passed");
    Ok(())
}

fn format() -> Result<()> {
    Command::cargo()?.args(["fmt", "--all", "--check"]).run()
}

/// The SDK also without its features: an application may leave TLS and metrics out. The fuzz targets are a workspace of
/// their own, of which the tests build the library alone: here its examples are too, and by the lock file that it has.
fn clippy() -> Result<()> {
    let clippy = |chosen: &[&str]| {
        Command::cargo()?
            .args(["clippy", "--quiet"])
            .args(chosen)
            .args(["--", "-D", "warnings"])
            .env("CARGO_TARGET_DIR", tools::target())
            .run()
    };
    clippy(&["--workspace", "--all-targets", "--all-features"])?;
    clippy(&["--package", "damper-sdk", "--no-default-features"])?;
    clippy(&["--manifest-path", "fuzz/Cargo.toml", "--locked", "--all-targets"])
}

fn deny() -> Result<()> {
    Command::new(tools::cargo_deny()?)
        .args(["--log-level", "error", "check", "bans", "licenses", "sources"])
        .run()
}

fn page() -> Result<()> {
    Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .in_folder("web-ui")
        .run()?;
    for script in ["generate", "check", "lint", "test"] {
        Command::new("npm").args(["run", "--silent", script]).in_folder("web-ui").run()?;
    }
    Ok(())
}

/// Etcd, PostgreSQL, Envoy, the browser, and services in other languages are real; tests fail without them.
/// The binary that some of them run is built with them: the tests of its own package need it.
fn tests() -> Result<()> {
    Command::cargo()?
        .args(["test", "--workspace", "--all-features", "--no-fail-fast"])
        .env("DAMPER_TEST_ETCD", tools::etcd()?)
        .env("DAMPER_TEST_POSTGRES", tools::postgres()?)
        .env("DAMPER_TEST_ENVOY", tools::envoy()?)
        .env("CHROMIUM", tools::chromium()?)
        .env("DAMPER_TEST_GO", tools::go()?)
        .env("DAMPER_TEST_MAVEN", tools::maven()?)
        .env("DAMPER_TEST_PYTHON", tools::python()?)
        .env("DAMPER_BINARY", tools::target().join("debug/damper"))
        .run()
}

/// The same seed gives the same bytes in every build: the file that the tests hold theirs to.
fn simulations() -> Result<()> {
    Command::cargo()?
        .args(["test", "--release", "--package", "damper-sim", "--test", "simulations", "golden"])
        .run()
}

fn documentation() -> Result<()> {
    Command::cargo()?
        .args(["doc", "--quiet", "--workspace", "--all-features", "--no-deps"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()
}
