//! A fleet in a process of its own, so that it has its own open files and its own memory, told line by line what to do.

use std::io::BufRead as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Door, Fleet};
use crate::process::{Conversation, answer};

/// Which fleet; how to come in is told in the environment, for a secret does not belong on a command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Holding {
    /// Where the server is
    #[arg(long)]
    url: String,
    /// The certificate of its authority
    #[arg(long)]
    authority: Option<PathBuf>,
    /// The server is not Damper's but the raw one
    #[arg(long)]
    raw: bool,
    /// How many clients
    #[arg(long)]
    clients: usize,
}

/// What a fleet is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    /// Write a change, and answer when each client had it.
    Change,
    /// From now on report so many routes.
    Report(usize),
}

/// A fleet that another process holds.
#[derive(Debug)]
pub struct HeldFleet(Conversation);

impl HeldFleet {
    /// Connects so many clients to a server.
    ///
    /// # Errors
    /// They can not be connected.
    pub async fn start(door: &Door, raw: bool, clients: usize) -> Result<Self> {
        let count = clients.to_string();
        let mut arguments = vec!["hold-fleet", "--url", door.url(), "--clients", &count];
        let authority = door.authority().map(|path| path.display().to_string());
        arguments.extend(authority.iter().flat_map(|path| ["--authority", path]));
        arguments.extend(raw.then_some("--raw"));
        let mut conversation = Conversation::start(&arguments, door.tokens())?;
        let said = conversation.read(&format!("{clients} connected clients")).await?;
        if said != "ready" {
            bail!("the fleet says {said:?}");
        }
        Ok(Self(conversation))
    }

    /// Writes a change that concerns every client; answers how long after that each of them had taken it and
    /// answered, in seconds, ascending.
    ///
    /// # Errors
    /// It does not reach all of them.
    pub async fn change(&mut self) -> Result<Vec<f64>> {
        let change = serde_json::to_string(&Order::Change)?;
        let arrived = self.0.ask(&change, "the change in all clients").await?;
        serde_json::from_str(&arrived).context("when each client had it")
    }

    /// From now on each client reports so many routes every 5 s.
    ///
    /// # Errors
    /// The fleet is gone.
    pub async fn report(&mut self, routes: usize) -> Result<()> {
        self.0.say(&serde_json::to_string(&Order::Report(routes))?).await
    }
}

/// Holds a fleet and does as it is told, until its input ends.
///
/// # Errors
/// It can not be connected, or a client fails.
pub async fn hold(holding: Holding) -> Result<()> {
    let door = Door::told(&holding.url, holding.authority)?;
    let fleet = Fleet::connect(&door, holding.clients, 0).await?;
    answer("ready")?;
    let (tell, mut orders) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
    });
    while let Some(order) = orders.recv().await {
        match serde_json::from_str(&order)? {
            Order::Report(routes) => fleet.report(routes),
            Order::Change => {
                let arrived = if holding.raw {
                    fleet.arrival(super::client::trigger(&door)).await?
                } else {
                    fleet.arrival(async { super::rules::put_late(&door).await.map(drop) }).await?
                };
                answer(&serde_json::to_string(&arrived)?)?;
            }
        }
    }
    Ok(())
}
