//! What a row of the table says: figures, each with its peer from the same run and what was aimed at.

use damper_tests::spread::Spread;
use serde::{Deserialize, Serialize};

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// In what: `ns`, `allocations`, `KiB`, ...
    pub unit: String,
    /// Ours.
    pub ours: Spread,
    /// The same of something else, measured in the same rounds.
    pub peer: Option<Peer>,
    /// Ours divided by the peer's, round by round.
    pub ratio: Option<Spread>,
    /// What was aimed at.
    pub target: Option<Target>,
}

/// Whom a figure is compared with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its figure, in the same unit.
    pub figure: Spread,
}

/// What was aimed at; judged by the median.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Ours.
    AtMost(f64),
    /// Ours.
    AtLeast(f64),
    /// Ours divided by the peer's.
    RatioAtMost(f64),
    /// Ours divided by the peer's.
    RatioAtLeast(f64),
}

impl Figure {
    /// A figure that stands alone.
    #[must_use]
    pub fn new(what: impl Into<String>, unit: &str, ours: Spread) -> Self {
        Self { what: what.into(), unit: unit.to_owned(), ours, peer: None, ratio: None, target: None }
    }

    /// Rounds of ours beside rounds of a peer.
    #[must_use]
    pub fn beside(what: impl Into<String>, unit: &str, ours: &[f64], peer: &str, theirs: &[f64]) -> Self {
        // A ratio to nothing is none.
        let ratio = theirs.iter().all(|&theirs| theirs != 0.0).then(|| crate::rounds::ratio(ours, theirs));
        let peer = Some(Peer { name: peer.to_owned(), figure: Spread::of(theirs.iter().copied()) });
        Self { peer, ratio, ..Self::new(what, unit, Spread::of(ours.iter().copied())) }
    }

    /// What was aimed at.
    #[must_use]
    pub fn aim(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// True if that was reached; none if nothing was aimed at, or there is no peer to be judged by.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        Some(match self.target? {
            Target::AtMost(most) => self.ours.median <= most,
            Target::AtLeast(least) => self.ours.median >= least,
            Target::RatioAtMost(most) => self.ratio?.median <= most,
            Target::RatioAtLeast(least) => self.ratio?.median >= least,
        })
    }
}

/// A row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What it is called on the command line.
    pub id: String,
    /// What it is about.
    pub title: String,
    /// What shows it.
    pub command: String,
    /// How it was measured, and what the reader has to know to believe it.
    pub notes: Vec<String>,
    /// What came of it; empty for a row that is not measured here.
    pub figures: Vec<Figure>,
    /// What is drawn of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charts: Vec<Chart>,
    /// When and on what, unless it is not measured here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// A picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chart {
    /// The name of its file.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What the horizontal axis says, if it has numbers; it is logarithmic.
    pub x: Option<String>,
    /// What the vertical axis says; it begins at 0.
    pub y: String,
    /// Lines, or groups of bars where the horizontal axis has no numbers.
    pub series: Vec<Series>,
}

/// A line of a picture, or a group of bars.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// A point of a line, or a bar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The name of the bar.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where it is on the horizontal axis, if that has numbers.
    #[serde(default)]
    pub x: f64,
    /// How high it is, and its range.
    pub y: Spread,
}

/// The circumstances of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The commit, `+` where files were changed since.
    pub commit: String,
    /// Seconds since 1970.
    pub at_unix: u64,
    /// How much was measured: `smallest`, `short`, `full`.
    pub size: String,
    /// How many rounds.
    pub rounds: usize,
    /// The load average of the last minute when the row began: above 1 somebody else was at work.
    pub load: f64,
    /// How long it took, in seconds.
    pub took_s: f64,
}

impl Row {
    /// A row without figures yet.
    #[must_use]
    pub fn new(id: &str, title: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            command: format!("cargo xtask bench --only {id}"),
            notes: Vec::new(),
            figures: Vec::new(),
            charts: Vec::new(),
            measured: None,
        }
    }

    /// Shown by another command than the benchmarks' own.
    #[must_use]
    pub fn shown_by(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// With something the reader has to know.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// With a figure.
    #[must_use]
    pub fn with(mut self, figure: Figure) -> Self {
        self.figures.push(figure);
        self
    }

    /// With a picture.
    #[must_use]
    pub fn draw(mut self, chart: Chart) -> Self {
        self.charts.push(chart);
        self
    }

    /// With figures.
    #[must_use]
    pub fn with_all(mut self, figures: impl IntoIterator<Item = Figure>) -> Self {
        self.figures.extend(figures);
        self
    }
}
