//! What a run of the lab found: all figures of all runs, and the machine that they come from. It is `lab.json`, and for
//! fleets `fleets.json`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::figures::{Figures, Part};
use super::scenario::{Scenario, Trouble};
use super::strategy::Strategy;
use crate::machine::Machine;
use crate::spread::Spread;

/// Its name.
pub const FILE: &str = "lab.json";
/// The name of that of fleets.
pub const FLEETS: &str = "fleets.json";

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    /// Where and how it was measured.
    #[serde(rename = "machine")]
    pub circumstances: Circumstances,
    /// One for each scenario.
    pub rows: Vec<Row>,
}

/// What is known of fleets: some of them were run with real processes, all of them in the simulator.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Fleets {
    /// With real processes; none: not yet.
    pub measured: Option<Results>,
    /// In the simulator. Without goodput by the second.
    pub simulated: Vec<Row>,
}

/// Where and how.
#[derive(Debug, Serialize, Deserialize)]
pub struct Circumstances {
    /// Where, and what.
    #[serde(flatten)]
    pub machine: Machine,
    /// What was run: `short`, `full`.
    pub selection: String,
    /// How often each scenario ran.
    pub runs: usize,
    /// Chains at the same time.
    pub parallel: usize,
    /// Processes that wanted to run before the lab began: what else was going on.
    pub load_before: f64,
    /// The same at the end, the lab's own included.
    pub load_after: f64,
    /// How long it took.
    pub took_s: u64,
    /// Seconds since 1970 at the end.
    pub ended_at: u64,
}

/// One scenario.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// m: layers, the top included.
    pub layers: usize,
    /// Callers of the bottom, where these are a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<usize>,
    /// What went wrong.
    pub trouble: Trouble,
    /// How every layer repeated.
    pub strategy: Strategy,
    /// The figures of each time that it ran.
    pub runs: Vec<Figures>,
}

impl Results {
    /// Those in a folder.
    ///
    /// # Errors
    /// There are none, or they are of another kind.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        read(&folder.join(FILE))
    }

    /// Writes them into a folder.
    ///
    /// # Errors
    /// They can not be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        write(self, &folder.join(FILE))
    }

    /// The row of a scenario, if it was run.
    #[must_use]
    pub fn row(&self, layers: usize, trouble: Trouble, strategy: Strategy) -> Option<&Row> {
        let is_it = |row: &&Row| row.layers == layers && row.trouble == trouble && row.strategy == strategy;
        self.rows.iter().find(is_it)
    }
}

impl Fleets {
    /// Those in a folder.
    ///
    /// # Errors
    /// There are none, or they are of another kind.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        read(&folder.join(FLEETS))
    }

    /// Writes them into a folder.
    ///
    /// # Errors
    /// They can not be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        write(self, &folder.join(FLEETS))
    }
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("can not read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not what the lab writes", path.display()))
}

pub(super) fn write(results: &impl Serialize, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut text = serde_json::to_string(results)?;
    // A row per line: a change of one can be seen as such.
    for first in ["{\"layers\":", "{\"fault\":"] {
        text = text.replace(first, &format!("\n{first}"));
    }
    text.push('\n');
    Ok(fs::write(path, text)?)
}

impl Row {
    /// What came of a scenario.
    #[must_use]
    pub fn of(scenario: &Scenario, runs: Vec<Figures>) -> Self {
        let Scenario { layers, trouble, strategy, fleet, .. } = *scenario;
        Self { layers, callers: fleet.map(|fleet| fleet.callers), trouble, strategy, runs }
    }

    /// A figure over the runs.
    pub fn spread(&self, figure: impl Fn(&Figures) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(figure))
    }

    /// A figure of the steady part over the runs.
    pub fn steady(&self, figure: impl Fn(&Part) -> f64) -> Spread {
        self.spread(|figures| figure(&figures.steady))
    }

    /// The most attempts of one request on the last hop in any run.
    #[must_use]
    pub fn worst(&self) -> u32 {
        self.runs.iter().map(|figures| figures.worst).max().unwrap_or_default()
    }
}

/// The name of a scenario on the command line.
#[must_use]
pub fn name(scenario: &Scenario) -> String {
    let Scenario { layers, trouble, strategy, .. } = scenario;
    match scenario.fleet {
        Some(fleet) => format!("fleet-{}/{trouble}/{strategy}", fleet.callers),
        None => format!("m{layers}/{trouble}/{strategy}"),
    }
}
