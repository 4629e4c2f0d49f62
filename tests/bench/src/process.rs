//! Other processes: children of this program that end with it, and what the system says a process uses.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// What /proc counts processor time in, a hundredth of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// A child that is killed when it is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it; what it prints goes where ours goes.
    ///
    /// # Errors
    /// It can not be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("can not start {}", command.get_program().display()))?))
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.0.id())
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The system does not say.
    pub fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        Ok(self.0.try_wait()?)
    }
}

/// This program in another role, in a process of its own, with which one speaks line by line.
#[derive(Debug)]
pub struct Conversation {
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Conversation {
    /// Starts it.
    ///
    /// # Errors
    /// It can not be started.
    pub fn start(
        arguments: &[impl AsRef<OsStr>],
        environment: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).envs(environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("this program can not be started")?;
        let input = child.stdin.take().context("its input is piped")?;
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { running: Running(child), input, output })
    }

    /// Tells it a line.
    ///
    /// # Errors
    /// It has ended.
    pub fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Waits for a line of it.
    ///
    /// # Errors
    /// It has ended.
    pub fn read(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the other process ended");
        Ok(line.trim_end().to_owned())
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> Result<Usage> {
        self.running.usage()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// What it holds, in KiB.
    pub memory_kib: u64,
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
        let (memory_kib, peak_kib) = (kibibytes("VmRSS:")?, kibibytes("VmHWM:")?);
        Ok(Self { memory_kib, peak_kib, processor: TICK * ticks })
    }

    /// Processor time since then.
    #[must_use]
    pub fn processor_since(&self, before: &Self) -> Duration {
        self.processor.saturating_sub(before.processor)
    }
}

/// Answers the process that started this one in a role.
///
/// # Errors
/// It is gone.
pub fn answer(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// The most files that this process may have open, raised as far as the system lets it.
///
/// # Errors
/// The system does not say.
pub fn raise_file_limit() -> Result<u64> {
    Ok(rlimit::increase_nofile_limit(rlimit::INFINITY)?)
}
