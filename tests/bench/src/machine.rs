//! What the figures were measured on.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine and what ran on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor, as it calls itself.
    pub processor: String,
    /// How many cores programs may use.
    pub cores: usize,
    /// In GiB.
    pub memory_gib: f64,
    /// The kernel.
    pub kernel: String,
    /// The compiler.
    pub rustc: String,
    /// Who is measured and what with, by name and version.
    pub versions: Vec<(String, String)>,
}

/// This one.
#[must_use]
pub fn this() -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let memory_kib = field(&meminfo, "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    Machine {
        processor: field(&cpuinfo, "model name"),
        cores: cores(),
        memory_gib: memory_kib / 1024.0 / 1024.0,
        kernel: said("uname", &["-sr"]),
        rustc: said("rustc", &["--version"]),
        versions: versions(),
    }
}

/// How many cores programs may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The load average of the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// What is checked out; with a plus where tracked files differ from it.
#[must_use]
pub fn commit() -> String {
    let changed = !said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    format!("{}{}", said("git", &["rev-parse", "--short=12", "HEAD"]), if changed { "+" } else { "" })
}

/// The first line that a program prints; nothing where there is none.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn versions() -> Vec<(String, String)> {
    const LIBRARIES: [&str; 7] = ["tonic", "hyper", "h2", "tower", "tokio", "sled", "etcd-client"];
    let lock = include_str!("../../../Cargo.lock");
    let version = |name: &str| {
        let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        Some((name.to_owned(), rest.split('"').next()?.to_owned()))
    };
    let mut versions: Vec<_> = LIBRARIES.into_iter().filter_map(version).collect();
    let etcd = std::env::var("DAMPER_TEST_ETCD").unwrap_or_else(|_| "etcd".to_owned());
    versions.push(("etcd".to_owned(), said(&etcd, &["--version"]).replace("etcd Version: ", "")));
    versions
}
