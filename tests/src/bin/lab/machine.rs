//! Where and how a run was measured: without it no figure can be judged.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Where and how.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Seconds since 1970 at the end.
    pub(crate) ended_at: u64,
    pub(crate) took_s: u64,
    /// What was run: `short`, `full`.
    pub(crate) selection: String,
    pub(crate) runs: usize,
    /// Chains at the same time.
    pub(crate) parallel: usize,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Processes that wanted to run, one minute's mean, before the lab began: what else was going on.
    pub(crate) load_before: f64,
    /// The same at the end, the lab's own included.
    pub(crate) load_after: f64,
    pub(crate) commit: String,
    /// Whether files differed from that commit.
    pub(crate) changed: bool,
    pub(crate) rustc: String,
    /// `name version` of what the chains are made of.
    pub(crate) crates: Vec<String>,
}

/// What the chains are made of.
const CRATES: [&str; 6] = ["damper-sdk", "tonic", "h2", "hyper", "tokio", "tower"];

impl Machine {
    /// This machine, before a run.
    pub(crate) fn before(selection: &str, runs: usize, parallel: usize) -> anyhow::Result<Self> {
        let processor = first(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default(), "model name\t: ");
        Ok(Self {
            ended_at: 0,
            took_s: 0,
            selection: selection.to_owned(),
            runs,
            parallel,
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism()?.get(),
            kernel: said("uname", &["-sr"])?,
            load_before: load(),
            load_after: 0.0,
            commit: said("git", &["rev-parse", "--short=12", "HEAD"])?,
            changed: !said("git", &["status", "--porcelain", "--untracked-files=no"])?.is_empty(),
            rustc: said("rustc", &["--version"])?,
            crates: crates()?,
        })
    }

    /// The same, after it.
    pub(crate) fn after(self, took: std::time::Duration) -> anyhow::Result<Self> {
        let ended_at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(Self { ended_at, took_s: took.as_secs(), load_after: load(), ..self })
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

fn first(text: &str, begin: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(begin)).map(str::to_owned)
}

fn said(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.with_context(|| format!("can not start {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn crates() -> anyhow::Result<Vec<String>> {
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock"))?;
    let version = |name: &str| {
        let rest = lock.split_once(&format!("\nname = \"{name}\"\nversion = \""))?.1;
        Some(format!("{name} {}", rest.split_once('"')?.0))
    };
    Ok(CRATES.into_iter().filter_map(version).collect())
}
