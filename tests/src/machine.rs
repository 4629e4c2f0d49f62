//! What figures were measured on: without it none can be judged.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The machine and what was built on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// As it calls itself.
    pub processor: String,
    /// How many cores programs may use.
    pub cores: usize,
    /// In GiB; 0 where it was not noted.
    #[serde(default)]
    pub memory_gib: f64,
    /// Its name and release.
    pub kernel: String,
    /// The compiler.
    pub rustc: String,
    /// `name version` of what is measured and what with.
    pub crates: Vec<String>,
    /// What was measured.
    #[serde(flatten)]
    pub commit: Commit,
}

/// What is checked out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Commit {
    /// Its hash, abbreviated.
    pub commit: String,
    /// Whether tracked files differed from it.
    pub changed: bool,
}

impl Machine {
    /// This one.
    ///
    /// # Errors
    /// A program that is asked is not there.
    pub fn this(crates: &[&str]) -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let processor = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
        let memory = field(&meminfo, "MemTotal").and_then(|size| size.trim_end_matches(" kB").parse().ok());
        Ok(Self {
            processor: processor.to_owned(),
            cores: cores(),
            memory_gib: memory.unwrap_or(0.0) / 1024.0 / 1024.0,
            kernel: said("uname", &["-sr"])?,
            rustc: said("rustc", &["--version"])?,
            crates: crates.iter().copied().filter_map(version).collect(),
            commit: Commit::checked_out()?,
        })
    }
}

impl Commit {
    /// What is checked out now.
    ///
    /// # Errors
    /// There is no git.
    pub fn checked_out() -> Result<Self> {
        Ok(Self {
            commit: said("git", &["rev-parse", "--short=12", "HEAD"])?,
            // What is measured writes its results into the documentation, one after the other.
            changed: !said("git", &["status", "--porcelain", "--untracked-files=no", ":!docs"])?.is_empty(),
        })
    }
}

/// With a plus where files were changed since.
impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.commit, if self.changed { "+" } else { "" })
    }
}

/// How many cores programs may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many processes wanted to run, one minute's mean.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

/// The first line that a program prints.
///
/// # Errors
/// It can not be started.
pub fn said(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
    let program = program.as_ref();
    let output = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.with_context(|| format!("can not start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}

/// Its name and the version that was built.
fn version(name: &str) -> Option<String> {
    let lock = include_str!("../../Cargo.lock");
    let (_, rest) = lock.split_once(&format!("\nname = \"{name}\"\nversion = \""))?;
    Some(format!("{name} {}", rest.split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_is_and_what_was_built() {
        let machine = Machine::this(&["tonic", "no-such-crate"]).unwrap();
        assert!(machine.cores > 0 && machine.rustc.starts_with("rustc "), "{machine:?}");
        assert!(matches!(machine.crates.as_slice(), [tonic] if tonic.starts_with("tonic 0.")), "{machine:?}");
        assert!(!machine.commit.commit.is_empty());
    }
}
