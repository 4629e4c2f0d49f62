//! What the system says that a process uses.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// What /proc counts processor time in, a hundredth of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// What it holds, in KiB.
    pub memory_kib: u64,
    /// What of that is its own, without the program's code and other files, in KiB.
    pub own_kib: u64,
    /// The most that it has held, in KiB.
    pub peak_kib: u64,
    processor: Duration,
}

impl Usage {
    /// Of a process.
    ///
    /// # Errors
    /// There is none.
    pub fn of(process: u32) -> Result<Self> {
        let place = PathBuf::from(format!("/proc/{process}"));
        let status = fs::read_to_string(place.join("status"))?;
        let kibibytes = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
            Ok(line.trim().trim_end_matches("kB").trim().parse()?)
        };
        let line = fs::read_to_string(place.join("stat"))?;
        let after_name = line.rsplit(") ").next().unwrap_or_default();
        // Fields 14 and 15 of proc_pid_stat(5), time in the program and in the system; the state is field 3.
        let ticks = after_name.split(' ').skip(11).take(2).map(str::parse::<u32>);
        let ticks = ticks.sum::<std::result::Result<u32, _>>()?;
        let own_kib = kibibytes("RssAnon:")?;
        let (memory_kib, peak_kib) = (kibibytes("VmRSS:")?, kibibytes("VmHWM:")?);
        Ok(Self { memory_kib, own_kib, peak_kib, processor: TICK * ticks })
    }

    /// Processor time since then.
    #[must_use]
    pub fn processor_since(&self, before: &Self) -> Duration {
        self.processor.saturating_sub(before.processor)
    }
}
