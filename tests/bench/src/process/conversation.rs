//! The program `bench` in another role, or a peer, in a process of its own: it obeys line by line.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::{Running, Usage, sibling, tethered};

/// Longer than what a role gives its own work, for it can say better what it waits for.
const PATIENCE: Duration = Duration::from_secs(400);

/// A process and what it says.
#[derive(Debug)]
pub struct Conversation {
    running: Running,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Conversation {
    /// Starts it; the first argument is the role.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        arguments: &[&str],
        environment: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self> {
        let role = arguments.first().copied().unwrap_or_default();
        let mut command = tethered(sibling("bench"));
        command.args(arguments).envs(environment);
        Self::of(role, command)
    }

    /// Starts another program that speaks line by line.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn of(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::spawn(name, command)?;
        let input = running.child.stdin.take().context("its input is piped")?;
        let output = running.child.stdout.take().context("its output is piped")?;
        let lines = BufReader::new(ChildStdout::from_std(output)?).lines();
        Ok(Self { running, input: ChildStdin::from_std(input)?, lines })
    }

    /// Tells it a line.
    ///
    /// # Errors
    /// It has ended.
    pub async fn say(&mut self, line: &str) -> Result<()> {
        let told = self.input.write_all(format!("{line}\n").as_bytes()).await;
        told.with_context(|| self.running.complaint())
    }

    /// Waits for a line of it; `what` is what the line is to say.
    ///
    /// # Errors
    /// It ends, or says nothing in time.
    pub async fn read(&mut self, what: &str) -> Result<String> {
        match timeout(PATIENCE, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(_) => bail!("{what}: {}", self.running.complaint()),
            Err(_) => bail!("{what}: not within {PATIENCE:?}; {}", self.running.complaint()),
        }
    }

    /// Tells it a line and waits for its answer.
    ///
    /// # Errors
    /// It ends, or does not answer in time.
    pub async fn ask(&mut self, line: &str, what: &str) -> Result<String> {
        self.say(line).await?;
        self.read(what).await
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// It has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.running.kill()
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> Result<Usage> {
        self.running.usage()
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
