//! One case of the chain of services in several languages: healthy, a fault, healthy again.
//!
//! The parts of a run are those of [`scenario`](super::scenario). After the fault there are two: the first
//! window of the breaker and the rest. Each case starts its own chain and its own control plane.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::figures::{Figures, Part};
use super::load::Load;
use super::results::{self, Circumstances};
use super::scenario::{Parts, Record};
use crate::control_plane::ControlPlane;
use crate::foreign::Language;
use crate::foreign::chain::{Chain, Fault, NO_BREAKER, Timeouts, Way, rules};

/// The name of the file with all figures.
const FILE: &str = "languages.json";
/// The breaker's window, so short that a run is.
const WINDOW: Duration = Duration::from_secs(4);
/// A customer waits for the longest chain of attempts, nine of 0.5 s.
const LOAD: Load = Load { rate: 10, patience: Duration::from_secs(6) };
const PARTS: Parts = Parts {
    warm_up: Duration::from_secs(4),
    healthy: Duration::from_secs(4),
    first: WINDOW,
    steady: Duration::from_secs(4),
    end: LOAD.patience,
    after: Duration::from_secs(12),
};
/// Hosts of the services; no test has them.
const HOSTS: [u8; 4] = [31, 32, 33, 34];

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// What goes wrong.
    pub fault: Fault,
    /// How the services retry.
    pub way: Way,
    /// Whether the retry breaker is on; off, the flags alone bound the attempts.
    pub breaker: bool,
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Those of any chain.
    pub figures: Figures,
    /// The first window after the fault.
    pub healed: Part,
    /// From then on.
    pub later: Part,
}

/// One case and its runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// The figures of each run.
    pub runs: Vec<Run>,
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Languages {
    /// Where and how it was measured.
    #[serde(rename = "machine")]
    pub circumstances: Circumstances,
    /// `debug` or `release`.
    pub build: String,
    /// One for each case.
    pub rows: Vec<Row>,
}

impl Languages {
    /// Returns those in a folder.
    ///
    /// # Errors
    /// There are none, or they are of another kind.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        results::read(&folder.join(FILE))
    }

    /// Writes them into a folder.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        results::write(self, &folder.join(FILE))
    }
}

impl Case {
    /// Returns all cases, fault by fault.
    pub fn all() -> Vec<Self> {
        let ways = [
            (Way::OwnRetries, false),
            (Way::Gap, false),
            (Way::Proxies, false),
            (Way::Gap, true),
            (Way::Proxies, true),
        ];
        let of = |fault| ways.map(|(way, breaker)| Self { fault, way, breaker });
        [Fault::Errors, Fault::Lost, Fault::Slow].into_iter().flat_map(of).collect()
    }

    /// Returns its name on the command line.
    pub fn name(&self) -> String {
        let breaker = if self.breaker { "-breaker" } else { "" };
        format!("languages/{:?}/{:?}{breaker}", self.fault, self.way).to_lowercase()
    }

    /// Runs it.
    ///
    /// # Errors
    /// The first service is not reached.
    pub async fn run(&self) -> anyhow::Result<Run> {
        let control_plane = ControlPlane::start().await;
        let bucket = format!("bucket_length: {}ms", WINDOW.as_millis() / 10);
        let breaker = if self.breaker { bucket.as_str() } else { NO_BREAKER };
        control_plane.apply(&rules(breaker, self.timeouts())).await;
        let chain = Chain::start(&control_plane, self.way, self.timeouts(), HOSTS).await;
        let begin = Instant::now();
        let load = tokio::spawn(LOAD.run(chain.address(), begin, PARTS.all()));
        sleep_until(begin + PARTS.broken()).await;
        chain.set(self.fault);
        sleep_until(begin + PARTS.healed()).await;
        chain.set(Fault::None);
        let ended = load.await??;
        let mut arrivals = chain.arrivals();
        arrivals.resize(ended.len(), 0);
        let record = Record { arrivals: vec![vec![1; ended.len()], arrivals], ended };
        drop(chain);
        control_plane.stop().await;
        Ok(Run::of(&record))
    }

    /// Returns the limits that make answers be lost or a hop be slow.
    fn timeouts(&self) -> Timeouts<'static> {
        const MS: Duration = Duration::from_millis(1);
        const LOST: Timeouts<'_> =
            &[(Language::Go, MS.saturating_mul(1_000)), (Language::Python, MS.saturating_mul(400))];
        const SLOW: Timeouts<'_> = &[(Language::Java, MS.saturating_mul(500))];
        match self.fault {
            Fault::None | Fault::Errors => &[],
            Fault::Lost => LOST,
            Fault::Slow => SLOW,
        }
    }
}

impl Run {
    fn of(record: &Record) -> Self {
        let healed = PARTS.healed()..PARTS.healed() + WINDOW;
        let later = healed.end..PARTS.all();
        let part = |due| Part::of(record, 1, due);
        Self { figures: Figures::at(record, &PARTS, 1), healed: part(healed), later: part(later) }
    }
}
