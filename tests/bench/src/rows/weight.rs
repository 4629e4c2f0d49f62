//! What the SDK weighs in a service: the same small service is built with it and without (`tests/weight`).
//!
//! Crates are those that cargo links for this machine, the size is that of the stripped program, memory and tasks are
//! what the running service holds after it has called each of its routes once. The service without the SDK calls them too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Size;
use crate::calls;
use crate::figure::{Figure, Row, Target};
use crate::fleet::Server;
use crate::patience::PATIENCE;
use crate::process::{output, tethered};
use crate::rounds::Spread;

const PACKAGE: &str = "damper-weight";
const WITHOUT: &str = "the same service without";
const ROUTES: usize = 200;
const BUILDING: Duration = Duration::from_secs(20 * 60);

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(1, 9, 25);
    let folder = tempfile::tempdir()?;
    let [without, with] =
        [Variant::build(false, folder.path()).await?, Variant::build(true, folder.path()).await?];
    let server = calls::control_plane().await?;
    let mut held = [Vec::new(), Vec::new()];
    let mut tasks = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (variant, (held, tasks)) in [&without, &with].into_iter().zip(held.iter_mut().zip(&mut tasks)) {
            let (memory, alive) = variant.run(&server).await?;
            held.push(memory);
            tasks.push(alive);
        }
    }
    let [base_held, own_held] = &held;
    let [base_tasks, own_tasks] = &tasks;
    let more = |own: &[f64], base: &[f64]| Spread::of(own.iter().zip(base).map(|(own, base)| own - base));
    let row = Row::new("weight", "Weight of the SDK in a service")
        .note(format!("The service without: {} crates, {:.2} MiB.", without.crates, without.mebibytes))
        .with(
            Figure::new("crates more", "", Spread::exactly((with.crates - without.crates) as f64))
                .aim(Target::AtMost(60.0)),
        )
        .with(
            Figure::new("MiB more, stripped", "MiB", Spread::exactly(with.mebibytes - without.mebibytes))
                .aim(Target::AtMost(1.5)),
        )
        .with(Figure::new("tasks more", "", more(own_tasks, base_tasks)).aim(Target::AtMost(1.0)))
        .with(
            Figure::new(format!("memory more at {ROUTES} routes"), "MiB", more(own_held, base_held))
                .aim(Target::AtMost(2.0)),
        )
        .with(Figure::beside("memory in all", "MiB", own_held, WITHOUT, base_held));
    Ok((rounds, row))
}

/// A built service.
struct Variant {
    program: PathBuf,
    crates: usize,
    mebibytes: f64,
}

impl Variant {
    async fn build(with_sdk: bool, folder: &Path) -> Result<Self> {
        let features: &[&str] = if with_sdk { &["--features", "sdk"] } else { &[] };
        let build = ["build", "--release", "--quiet", "--message-format=json", "--package", PACKAGE];
        let messages = cargo(&build, features).await?;
        let mut messages =
            messages.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let built = messages.find_map(|message| Some(message.get("executable")?.as_str()?.to_owned()));
        let program = folder.join(if with_sdk { "with" } else { "without" });
        let mut strip = tethered("strip");
        strip.arg("-o").arg(&program).arg(built.context("cargo builds a program")?);
        output("strip (of binutils)", strip, PATIENCE).await?;
        let mebibytes = std::fs::metadata(&program)?.len() as f64 / 1024.0 / 1024.0;
        let tree = ["tree", "--edges=normal", "--prefix=none", "--package", PACKAGE];
        let tree = cargo(&tree, features).await?;
        let crates = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len();
        Ok(Self { program, crates, mebibytes })
    }

    /// What it holds at the end, in MiB, and how many tasks.
    async fn run(&self, server: &Server) -> Result<(f64, f64)> {
        let mut service = tethered(&self.program);
        service.args([server.url(), &ROUTES.to_string()]);
        let said = output("the service", service, PATIENCE).await?;
        let (kibibytes, tasks) = said.trim().split_once(' ').context("two numbers")?;
        Ok((kibibytes.parse::<f64>()? / 1024.0, tasks.parse()?))
    }
}

async fn cargo(arguments: &[&str], features: &[&str]) -> Result<String> {
    let mut cargo = tethered(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(features);
    output(&format!("cargo {}", arguments.join(" ")), cargo, BUILDING).await
}
