//! What a run of the lab found: all figures of all runs, and the machine that they come from. It is `lab.json`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use damper_tests::lab::figures::{Figures, Part};
use damper_tests::lab::scenario::{Scenario, Trouble};
use damper_tests::lab::strategy::Strategy;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

const FILE: &str = "lab.json";

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Where and how it was measured.
    pub(crate) machine: Machine,
    /// One for each scenario.
    pub(crate) rows: Vec<Row>,
}

/// One scenario.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// m: layers, the top included.
    pub(crate) layers: usize,
    pub(crate) trouble: Trouble,
    pub(crate) strategy: Strategy,
    /// The figures of each time that it ran.
    pub(crate) runs: Vec<Figures>,
}

/// The middle and the ends of a figure over the runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Results {
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("can not read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not what the lab writes", path.display()))
    }

    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        let mut text = serde_json::to_string(self)?;
        // A row per line: a change of one can be seen as such.
        text = text.replace("{\"layers\":", "\n{\"layers\":");
        text.push('\n');
        Ok(fs::write(folder.join(FILE), text)?)
    }

    /// The row of a scenario, if it was run.
    pub(crate) fn row(&self, layers: usize, trouble: Trouble, strategy: Strategy) -> Option<&Row> {
        let is_it = |row: &&Row| row.layers == layers && row.trouble == trouble && row.strategy == strategy;
        self.rows.iter().find(is_it)
    }
}

impl Row {
    pub(crate) fn of(scenario: &Scenario, runs: Vec<Figures>) -> Self {
        let Scenario { layers, trouble, strategy, .. } = *scenario;
        Self { layers, trouble, strategy, runs }
    }

    /// A figure over the runs.
    pub(crate) fn spread(&self, figure: impl Fn(&Figures) -> f64) -> Spread {
        let mut all: Vec<f64> = self.runs.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        let at = |place: usize| all.get(place).copied().unwrap_or_default();
        let median = f64::midpoint(at(all.len() / 2), at(all.len().saturating_sub(1) / 2));
        Spread { median, least: at(0), most: at(all.len().saturating_sub(1)) }
    }

    /// A figure of the steady part over the runs.
    pub(crate) fn steady(&self, figure: impl Fn(&Part) -> f64) -> Spread {
        self.spread(|figures| figure(&figures.steady))
    }

    /// The most attempts of one request on the last hop in any run.
    pub(crate) fn worst(&self) -> u32 {
        self.runs.iter().map(|figures| figures.worst).max().unwrap_or_default()
    }
}

/// The name of a scenario on the command line.
pub(crate) fn name(scenario: &Scenario) -> String {
    format!("m{}/{}/{}", scenario.layers, scenario.trouble, scenario.strategy)
}
