//! Other processes: children of this program that end with it, and what the system says a process uses.
//!
//! Every child is started through the program `bench` in the role `tethered`, which asks Linux to kill it when whoever
//! started it ends, in whatever way, and then becomes the child. What a child prints as its errors is kept and shown
//! only when something goes wrong.

mod conversation;
mod usage;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::patience::within;

pub use conversation::{Conversation, answer};
pub use usage::Usage;

/// How much of what a child said is shown.
const SHOWN: u64 = 4096;

/// A program of this package; `bench` plays all roles.
#[must_use]
pub fn sibling(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the system knows where a running program is");
    own.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// A command that ends with this process.
pub fn tethered(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(sibling("bench"));
    command
        .args(["tethered", "--to", &std::process::id().to_string(), "--"])
        .arg(program)
        .stdin(Stdio::null());
    command
}

/// Becomes the command, and ends with the process that started this one.
///
/// # Errors
/// The command can not be started, or that process is gone.
pub fn become_tethered(starter: u32, command: &[OsString]) -> Result<()> {
    end_with_the_starter()?;
    if std::os::unix::process::parent_id() != starter {
        bail!("who started this is gone");
    }
    let (program, arguments) = command.split_first().context("a command")?;
    let error = std::os::unix::process::CommandExt::exec(Command::new(program).args(arguments));
    Err(error).with_context(|| format!("can not start {}", program.display()))
}

#[cfg(target_os = "linux")]
fn end_with_the_starter() -> Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Only Linux can do it; elsewhere children end when they are dropped.
#[cfg(not(target_os = "linux"))]
fn end_with_the_starter() -> Result<()> {
    Ok(())
}

/// Runs a command to its end and answers with what it printed; `what` it is to say.
///
/// # Errors
/// It fails, or does not end in time.
pub async fn output(what: &str, command: Command, time: Duration) -> Result<String> {
    let mut command = tokio::process::Command::from(command);
    let output = within(time, what, command.kill_on_drop(true).output()).await?;
    let output = output.with_context(|| format!("{what}: can not start it"))?;
    if !output.status.success() {
        bail!("{what}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A child that is killed when it is dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    errors: File,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// It can not be started.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        command.stdout(Stdio::null());
        Self::spawn(name, command)
    }

    fn spawn(name: &str, mut command: Command) -> Result<Self> {
        let errors = tempfile::tempfile()?;
        let child = command.stderr(errors.try_clone()?).spawn();
        Ok(Self {
            name: name.to_owned(),
            child: child.with_context(|| format!("can not start {name}"))?,
            errors,
        })
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.child.id())
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// How it is, and the last of what it said of errors.
    pub fn complaint(&mut self) -> String {
        let state = match self.child.try_wait() {
            Ok(Some(status)) => format!("ended with {status}"),
            Ok(None) => "still runs".to_owned(),
            Err(error) => error.to_string(),
        };
        let said = self.said().unwrap_or_else(|error| error.to_string());
        format!("{} {state}\n{}", self.name, said.trim_end())
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn said(&self) -> std::io::Result<String> {
        let length = self.errors.metadata()?.len();
        let from = length.saturating_sub(SHOWN);
        let mut said = vec![0; usize::try_from(length - from).unwrap_or_default()];
        self.errors.read_exact_at(&mut said, from)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.kill();
    }
}

/// The most files that this process may have open, raised as far as the system lets it.
///
/// # Errors
/// The system does not say.
pub fn raise_file_limit() -> Result<u64> {
    Ok(rlimit::increase_nofile_limit(rlimit::INFINITY)?)
}
