//! `cargo xtask layers`: holds each crate to its table of rooms.
//!
//! A room imports only rooms below it. Known exceptions stand in a file that may only shrink.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};

use super::files::{self, File};
use super::graph::{Graph, sources};
use super::rooms::{LEVELS, Level};
use crate::command::root;

const EXCEPTIONS: &str = "xtask/layers-exceptions.txt";
const MOST_LINES: usize = 400;

/// A broken rule. `key` names it in the file of exceptions.
struct Fault {
    key: String,
    place: String,
}

pub(crate) fn run() -> Result<()> {
    let files = files::read()?;
    let mut faults: Vec<Fault> =
        LEVELS.iter().filter(|level| level.enforced).flat_map(|level| check(level, &files)).collect();
    let core = "client-sdk/core/Cargo.toml";
    let manifest = std::fs::read_to_string(root().join(core)).context(core)?;
    faults.extend(dependencies(core, &manifest));
    let exceptions = std::fs::read_to_string(root().join(EXCEPTIONS)).context(EXCEPTIONS)?;
    let lines = report(&faults, &exceptions);
    lines.iter().for_each(|line| println!("{line}"));
    if !lines.is_empty() {
        bail!("{} broken rules of the rooms (xtask/src/house/rooms.rs)", lines.len());
    }
    Ok(())
}

fn check(level: &Level, files: &[File]) -> Vec<Fault> {
    let graph = Graph::new(level.folder, files);
    let place = |room: &str| level.rooms.iter().position(|known| *known == room);
    let mut faults = Vec::new();
    let mut fault = |path: &str, line: usize, rule: String| {
        faults.push(Fault { key: format!("{path}: {rule}"), place: format!("{path}:{line}: {rule}") });
    };
    for room in graph.rooms.iter().filter(|room| place(room).is_none()) {
        fault(&format!("{}/{room}", level.folder), 1, "not in the table of rooms".to_owned());
    }
    if graph.rooms.len() > level.most {
        fault(level.folder, 1, format!("{} rooms, at most {}", graph.rooms.len(), level.most));
    }
    for ((from, to), places) in &graph.arrows {
        if place(from).zip(place(to)).is_some_and(|(from, to)| to > from) {
            for (path, line) in places {
                fault(path, *line, format!("`{from}` imports `{to}`, a room above it"));
            }
        }
    }
    for file in sources(level.folder, files) {
        let lines = file.lines() - file.test_lines();
        if lines > MOST_LINES {
            fault(&file.path, 1, format!("over {MOST_LINES} lines without its tests"));
        }
    }
    faults
}

/// The core decides about retries and must stay pure: no dependencies.
fn dependencies(path: &str, manifest: &str) -> Vec<Fault> {
    let mut listed = false;
    let mut faults = Vec::new();
    for (line, text) in manifest.lines().enumerate() {
        let text = text.trim();
        let table = text.strip_prefix('[').map(|table| table.trim_end_matches(']'));
        let mut name = text.split(['.', '=', ' ']).next().unwrap_or_default();
        if let Some(table) = table {
            let (first, last) =
                table.rsplit_once("dependencies.").map_or((table, ""), |(first, last)| (first, last));
            listed = !first.ends_with("dev-") && (table.ends_with("dependencies") || !last.is_empty());
            listed &= !table.ends_with("dev-dependencies");
            name = last;
        }
        if listed && !name.is_empty() && !name.starts_with('#') {
            let rule = format!("dependency `{name}`, none is allowed");
            faults.push(Fault {
                key: format!("{path}: {rule}"),
                place: format!("{path}:{}: {rule}", line + 1),
            });
        }
        listed &= table.is_none_or(|table| table.ends_with("dependencies"));
    }
    faults
}

/// Returns the faults that are no exceptions, and the exceptions that are not needed.
fn report(faults: &[Fault], exceptions: &str) -> Vec<String> {
    let known: BTreeSet<&str> =
        exceptions.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let unknown =
        faults.iter().filter(|fault| !known.contains(fault.key.as_str())).map(|fault| fault.place.clone());
    let keys: BTreeSet<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    let unneeded =
        known.difference(&keys).map(|line| format!("{EXCEPTIONS}: remove `{line}`: not needed any more"));
    unknown.chain(unneeded).collect()
}

#[cfg(test)]
mod tests;
