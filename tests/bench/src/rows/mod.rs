//! The rows of the table, each measured by a file of its own.

mod change;
mod decision;
mod elsewhere;
mod layer;
mod lookup;
pub mod proxy;
mod queue;
pub mod reconnect;
mod reports;
mod retry;
mod simulated;
mod streams;
pub mod unary;
mod weight;
mod writes;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use damper_tests::machine::{self, Commit};

use crate::figure::{Measured, Row};
use crate::patience::within;

pub use decision::Decisions;
pub use lookup::table_of;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Size {
    /// Once, to see that it works: its times say nothing.
    Smallest,
    /// Some minutes in all.
    Short,
    /// Everything, on a machine that does nothing else.
    Full,
}

impl Size {
    /// One of three.
    pub(crate) fn pick<T>(self, smallest: T, short: T, full: T) -> T {
        match self {
            Self::Smallest => smallest,
            Self::Short => short,
            Self::Full => full,
        }
    }

    /// As it is written on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The rows that are measured here, in the order of the table.
pub const IDS: [&str; 16] = [
    "layer",
    "retry",
    "decision",
    "unary",
    "lookup",
    "change",
    "streams",
    "reports",
    "weight",
    "reconnect",
    "writes",
    "fleet",
    "outage",
    "recovery",
    "queue",
    "proxy",
];

/// More than any row takes; whatever in it waits has a shorter time of its own.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// Measures a row.
///
/// # Errors
/// It can not be measured.
pub async fn measure(id: &str, size: Size) -> Result<Row> {
    let (begun, load) = (Instant::now(), machine::load());
    let row = within(LONGEST, "the whole row", figures(id, size)).await.and_then(|row| row);
    let (rounds, row) = row.with_context(|| format!("the row {id:?}"))?;
    let at_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let took_s = begun.elapsed().as_secs_f64();
    let commit = Commit::checked_out()?.to_string();
    let measured = Some(Measured { commit, at_unix, size: size.name(), rounds, load, took_s });
    Ok(Row { measured, ..row })
}

async fn figures(id: &str, size: Size) -> Result<(usize, Row)> {
    match id {
        "layer" => layer::measure(size).await,
        "retry" => retry::measure(size).await,
        "decision" => decision::measure(size).await,
        "unary" => unary::measure(size).await,
        "lookup" => lookup::measure(size).await,
        "change" => change::measure(size).await,
        "streams" => streams::measure(size).await,
        "reports" => reports::measure(size).await,
        "weight" => weight::measure(size).await,
        "reconnect" => reconnect::measure(size).await,
        "writes" => writes::measure(size).await,
        "fleet" => simulated::fleet(size).await,
        "outage" => simulated::outage(size).await,
        "recovery" => simulated::recovery(size).await,
        "queue" => queue::measure(size).await,
        "proxy" => proxy::measure(size).await,
        other => bail!("there is no row {other:?}; there are {}", IDS.join(", ")),
    }
}

/// All rows of the table, in its order; those that are not measured here say where they are.
///
/// # Errors
/// What others wrote into the folder can not be read.
pub fn in_order(measured: Vec<Row>, folder: &Path) -> Result<Vec<Row>> {
    let mut rows = measured;
    rows.retain(|row| IDS.contains(&row.id.as_str()));
    rows.sort_by_key(|row| IDS.iter().position(|id| *id == row.id));
    rows.extend(elsewhere::rows(folder)?);
    Ok(rows)
}
