//! Durable queues under load: Damper's and its peers', each played by a process of its own.
//!
//! All of them obey the same orders, one line each: Damper's is this program in the role `play-queue`, its
//! peers are in `go`. `servers` starts what keeps their jobs, `raw` is a store of Damper without the server.

mod play;
mod raw;
mod servers;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::process::Conversation;

pub use play::{Player, play};
pub use raw::{Raw, RawStore};
pub use servers::{Keeper, Postgres, disk_kib, go, nats, peer, postgres, queue, redis};

/// Bytes of each job.
pub const BODY_BYTES: usize = 512;
/// Jobs that a worker handles at the same time.
pub const CONCURRENCY: u32 = 256;

/// One measurement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Order {
    /// What is measured.
    #[serde(rename = "do")]
    pub what: What,
    /// Number of jobs.
    pub count: usize,
    /// Submitters at the same time.
    pub submitters: usize,
    /// Jobs of one submission.
    pub batch: usize,
    /// Jobs that are due in a second.
    pub per_second: usize,
    /// Routes of the jobs; only Damper has them.
    #[serde(default)]
    pub lanes: usize,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Submit jobs that are due in an hour.
    #[default]
    Submit,
    /// Submit jobs, deliver and settle them.
    Lives,
    /// Deliver jobs at their due times.
    Late,
    /// Submit a job and deliver it, one after the other.
    First,
    /// Submit jobs that are due in half a second. Damper only.
    Soon,
    /// Wait until the handlers have begun this many jobs, since the process started. Damper only.
    Wait,
    /// Submit a job and begin to handle it, without end. Damper only.
    Begin,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// From the first submission to the last answer or settlement.
    pub seconds: f64,
    /// Time from when a job was due until its handler began, for each job.
    #[serde(default)]
    pub milliseconds: Option<Vec<f64>>,
}

/// A queue with its submitters and its worker.
#[derive(Debug)]
pub enum Load {
    /// In another process.
    Process(Box<Conversation>),
    /// A store in this one.
    Raw(Box<Raw>),
}

impl Load {
    /// Waits until the process is ready.
    ///
    /// # Errors
    /// It is not.
    pub async fn ready(mut process: Conversation) -> Result<Self> {
        let line = process.read("the worker's connection").await?;
        ensure!(line == "\"ready\"", "the worker printed {line:?}");
        Ok(Self::Process(Box::new(process)))
    }

    /// Kills the process.
    ///
    /// # Errors
    /// It has ended, or there is none.
    pub fn kill(&mut self) -> Result<()> {
        match self {
            Self::Process(process) => process.kill(),
            Self::Raw(_) => bail!("the store is in this process"),
        }
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// It fails.
    pub async fn order(&mut self, order: &Order) -> Result<Answer> {
        match self {
            Self::Process(process) => {
                let what = format!("{order:?}");
                let line = process.ask(&serde_json::to_string(order)?, &what).await?;
                serde_json::from_str(&line).with_context(|| format!("{what}: {line}"))
            }
            Self::Raw(raw) => raw.order(order).await,
        }
    }
}
