//! The counts per file and kind that may only fall.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

use super::What;
use crate::command::root;

pub(super) type Counts = BTreeMap<String, BTreeMap<What, usize>>;

/// Returns the stored counts; `None` if there are none yet.
pub(super) fn read(name: &str) -> Result<Option<Counts>> {
    let path = root().join(name);
    if !path.exists() {
        return Ok(None);
    }
    let stored: BTreeMap<String, BTreeMap<String, usize>> =
        serde_json::from_str(&fs::read_to_string(path)?).context("the baseline")?;
    let mut counts = Counts::new();
    for (path, kinds) in stored {
        for (kind, count) in kinds {
            let (what, _) = What::ALL
                .into_iter()
                .find(|(_, name)| *name == kind)
                .with_context(|| format!("kind {kind:?}"))?;
            counts.entry(path.clone()).or_default().insert(what, count);
        }
    }
    Ok(Some(counts))
}

/// Writes a line per file, so that two branches seldom change the same line.
pub(super) fn write(name: &str, counts: &Counts) -> Result<()> {
    let label = |what: &What| What::ALL.iter().find(|(known, _)| known == what).map_or("", |(_, name)| name);
    let file = |(path, kinds): (&String, &BTreeMap<What, usize>)| {
        let kinds: Vec<String> =
            kinds.iter().map(|(what, count)| format!("\"{}\": {count}", label(what))).collect();
        format!("  \"{path}\": {{ {} }}", kinds.join(", "))
    };
    let files: Vec<String> = counts.iter().map(file).collect();
    fs::write(root().join(name), format!("{{\n{}\n}}\n", files.join(",\n"))).context(name.to_owned())
}

pub(super) fn sum(counts: &Counts) -> usize {
    counts.values().flat_map(BTreeMap::values).sum()
}

fn of(counts: &Counts, path: &str, what: What) -> usize {
    counts.get(path).and_then(|kinds| kinds.get(&what)).copied().unwrap_or_default()
}

/// Returns what files without any hit today had before: room for the files that they became.
fn freed(before: &Counts, now: &Counts, what: What) -> usize {
    before
        .keys()
        .filter(|path| !root().join(path).exists() && !now.contains_key(*path))
        .map(|path| of(before, path, what))
        .sum()
}

/// Returns each file and kind that is over its count, with the count.
pub(super) fn over(before: &Counts, now: &Counts) -> Vec<(String, What, usize)> {
    let mut found = Vec::new();
    for (what, _) in What::ALL {
        let new = |path: &&String| !before.contains_key(*path);
        let added: usize = now.keys().filter(new).map(|path| of(now, path, what)).sum();
        let moved = added <= freed(before, now, what);
        for path in now.keys().filter(|path| !(moved && new(path))) {
            let allowed = of(before, path, what);
            if of(now, path, what) > allowed {
                found.push((path.clone(), what, allowed));
            }
        }
    }
    found
}

/// Returns today's counts where they are lower, and those of moved files.
pub(super) fn lowered(before: &Counts, now: Counts) -> Counts {
    let over = over(before, &now);
    let mut lowered = now;
    for (path, what, allowed) in over {
        if let Some(kinds) = lowered.get_mut(&path) {
            kinds.insert(what, allowed);
            kinds.retain(|_, count| *count > 0);
        }
    }
    lowered.retain(|_, kinds| !kinds.is_empty());
    lowered
}
