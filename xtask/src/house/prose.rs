//! `cargo xtask prose`: finds words that have a plainer replacement, wide comments and long names of tests.
//!
//! Each file has a count per kind in `xtask/prose/baseline.json` that may only fall. A new file starts at 0.
//! Moved files keep their counts: new files may have as many hits as the removed files had. `--lower` writes
//! the counts that have fallen.

mod baseline;
mod commits;
mod scan;

use anyhow::{Context as _, Result, bail};

pub(crate) use scan::{Bans, Hit, What};

use super::files::{self, File};
use crate::command::root;
use baseline::Counts;

const BASELINE: &str = "xtask/prose/baseline.json";

pub(crate) fn run(args: &[String]) -> Result<()> {
    let range = match args {
        [] => std::env::var_os("CI").map(|_| None),
        [flag] if flag == "--lower" => return lower(),
        [flag, range] if flag == "--commits" => Some(Some(range.as_str())),
        _ => bail!("usage: cargo xtask prose [--lower | --commits RANGE]"),
    };
    let mut faults = check()?;
    if let Some(range) = range {
        faults.extend(commits::check(range)?);
    }
    faults.iter().for_each(|fault| println!("{fault}"));
    if !faults.is_empty() {
        bail!("{} places to reword; a line that is right ends in `prose-ok: reason`", faults.len());
    }
    Ok(())
}

/// Returns a line for each hit of a file and kind that has more hits than its baseline.
fn check() -> Result<Vec<String>> {
    let (hits, unused) = hits(&files::read()?)?;
    let before = baseline::read(BASELINE)?.context("no baseline: run `cargo xtask prose --lower`")?;
    let counts = count(&hits);
    let fallen = baseline::sum(&before).saturating_sub(baseline::sum(&counts));
    if fallen > 0 {
        eprintln!("{fallen} hits fewer than the baseline: run `cargo xtask prose --lower`");
    }
    let mut lines = unused;
    for (path, what, allowed) in baseline::over(&before, &counts) {
        lines.push(format!("{path}: {} {what:?}, the baseline has {allowed}:", counts[&path][&what]));
        let beyond = hits.iter().filter(|hit| hit.path == path && hit.what == what);
        lines.extend(beyond.map(|hit| format!("  {path}:{}: `{}`: {}", hit.line, hit.found, hit.advice)));
    }
    Ok(lines)
}

fn lower() -> Result<()> {
    let (hits, _) = hits(&files::read()?)?;
    let counts = count(&hits);
    let lowered = match baseline::read(BASELINE)? {
        Some(before) => baseline::lowered(&before, counts),
        None => counts,
    };
    baseline::write(BASELINE, &lowered)
}

/// Returns all hits that are not allowed, and a line for each allowance that is not needed.
pub(crate) fn hits(files: &[File]) -> Result<(Vec<Hit>, Vec<String>)> {
    let read = |name| std::fs::read_to_string(root().join(name)).context(name);
    let bans =
        Bans::parse(&read("xtask/prose/banned.txt")?)?.with_stable(&read("xtask/prose/stable.txt")?)?;
    let mut hits = bans.hits(files);
    let mut unused = Vec::new();
    for line in
        read("xtask/prose/allowed.txt")?.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let mut parts = line.splitn(3, ": ");
        let (Some(path), Some(word), Some(_reason)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("xtask/prose/allowed.txt: `{line}` is not `path: word: reason`");
        };
        let before = hits.len();
        hits.retain(|hit| hit.path != path || hit.found != word);
        if hits.len() == before {
            unused.push(format!("xtask/prose/allowed.txt: remove `{line}`: not needed any more"));
        }
    }
    Ok((hits, unused))
}

fn count(hits: &[Hit]) -> Counts {
    let mut counts = Counts::new();
    for hit in hits {
        *counts.entry(hit.path.clone()).or_default().entry(hit.what).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
