//! A process of the lab: told what it is by its arguments, then what to do, one line of JSON each, answered by one.

use std::marker::PhantomData;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// One that takes orders of a kind; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Process<O, A> {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    kind: PhantomData<fn(&O) -> A>,
}

impl<O: Serialize, A: DeserializeOwned> Process<O, A> {
    /// Starts it, and waits for its first line.
    pub(super) async fn start(mut command: Command, name: &str) -> anyhow::Result<(Self, A)> {
        let program = command.as_std().get_program().to_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can not start {}", program.display()))?;
        let orders = child.stdin.take().context("its input is a pipe")?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let answers = BufReader::new(output).lines();
        let mut process = Self { name: name.to_owned(), child, orders, answers, kind: PhantomData };
        let first = process.read().await?;
        Ok((process, first))
    }

    pub(super) async fn ask(&mut self, order: &O) -> anyhow::Result<A> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).await?;
        self.read().await
    }

    async fn read(&mut self) -> anyhow::Result<A> {
        let name = &self.name;
        let line = self.answers.next_line().await?.with_context(|| format!("{name} has ended"))?;
        serde_json::from_str(&line).with_context(|| format!("no answer of {name}: {line}"))
    }

    /// Tells it to end, by the end of its input, and waits until it has.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let Self { name, mut child, orders, .. } = self;
        drop(orders);
        let ended = child.wait().await?;
        if !ended.success() {
            bail!("{name} ended with {ended}");
        }
        Ok(())
    }
}
