//! `damper simulate`: strategies in a scenario, in virtual time with the engine itself, without a server.
//!
//! Rules, guards and queues of a scenario are manifests, inline or in files. The same file and seed print the
//! same bytes on every platform.

mod picture;
mod tables;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use damper_core::Faults;
use damper_proto::manifest::{self, Problem};
use damper_sim::file::{Manifests, Policies};
use damper_sim::{Outcome, Scenario};

use crate::error::{CliError, print_message};
use crate::input::files;
use crate::output::show;
use crate::remote::session::Session;

/// Arguments of `damper simulate`.
#[derive(Args, Debug)]
#[command(
    after_help = "docs/simulator.md explains scenarios and results; control-plane/sim/scenarios contains examples."
)]
pub(crate) struct SimulateArgs {
    /// Scenario, a YAML file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Random seed of the simulation [default: the scenario's]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Write an SVG chart of attempts and of successful requests over time to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the speed of the simulation
    #[arg(long)]
    timing: bool,
}

/// Reads and simulates the scenario, and prints the result.
pub(crate) fn run(session: &Session, args: &SimulateArgs) -> Result<(), CliError> {
    let mut scenario = read(&args.file)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let began = Instant::now();
    let outcome =
        damper_sim::run(&scenario).map_err(|faults| invalid(&args.file, faults.iter().map(Problem::from)))?;
    if args.timing {
        print_message(timing(&outcome, began.elapsed().as_secs_f64()));
    }
    if let Some(file) = &args.svg {
        std::fs::write(file, picture::draw(&outcome)).map_err(CliError::io(file.display()))?;
    }
    show(session.format, &outcome, || tables::text(&outcome))
}

fn read(file: &Path) -> Result<Scenario, CliError> {
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(CliError::io("standard input"))?;
        text
    } else {
        std::fs::read_to_string(file).map_err(|error| files::unreadable(file, error))?
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    damper_sim::file::read(&text, &|which| manifests(folder, which))
        .map_err(|error| invalid(file, error.problems))
}

fn invalid(file: &Path, problems: impl IntoIterator<Item = Problem>) -> CliError {
    CliError::Data(problems.into_iter().map(|problem| problem.in_file(file.display())).collect())
}

/// Reads rules, guards and queues of a strategy; paths are relative to the scenario.
fn manifests(folder: &Path, which: Manifests<'_>) -> Result<Policies, Faults> {
    let (text, file) = match which {
        Manifests::Inline(value) => (value.to_string(), None),
        Manifests::File(name) => match std::fs::read_to_string(folder.join(name)) {
            Ok(text) => (text, Some(name)),
            Err(error) => {
                let mut faults = Faults::none();
                faults.add("", format!("{}: {error}", folder.join(name).display()));
                return Err(faults);
            }
        },
    };
    let checked = manifest::parse(&text).and_then(|documents| manifest::check(&documents));
    let checked = checked.map_err(|error| {
        let mut faults = Faults::none();
        for problem in error.problems {
            match (file, &problem) {
                (Some(file), problem) => faults.add("", format!("{file}: {problem}")),
                // The place in the scenario is known; the line of the generated text has no meaning.
                (None, Problem { path, problem, .. }) => faults.add(path, problem),
            }
        }
        faults
    })?;
    let manifest::Checked { rules, guards, queues, .. } = checked;
    Ok(Policies { rules, guards, queues })
}

fn timing(outcome: &Outcome, seconds: f64) -> String {
    let events: u64 = outcome.strategies.iter().map(|figures| figures.events).sum();
    let virtual_s = outcome.duration_us as f64 / 1e6 * outcome.strategies.len() as f64;
    format!(
        "{virtual_s:.0} virtual seconds and {events} events in {seconds:.3} s: {:.0} virtual seconds and {:.1} \
         million events per second",
        virtual_s / seconds,
        events as f64 / seconds / 1e6
    )
}
