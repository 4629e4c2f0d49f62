//! Subjects of commits: `area: what changes`, short.

use anyhow::{Context as _, Result};

use crate::command::{Command, root};

const SINCE: &str = "xtask/prose/commits-since.txt";
const LONGEST: usize = 60;

/// Checks the subjects of a range, by default of all commits after the one that is stored.
pub(super) fn check(range: Option<&str>) -> Result<Vec<String>> {
    let range = match range {
        Some(range) => range.to_owned(),
        None => format!("{}..HEAD", std::fs::read_to_string(root().join(SINCE)).context(SINCE)?.trim()),
    };
    let log = Command::new("git").args(["log", "--no-merges", "--format=%h %s", &range]).output();
    let log = log.context("the subjects need the whole history: `git fetch --unshallow`")?;
    Ok(log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(id, subject)| fault(id, subject))
        .collect())
}

pub(super) fn fault(id: &str, subject: &str) -> Option<String> {
    let length = subject.chars().count();
    let area = subject.split_once(": ").map(|(area, _)| area);
    let plain = |area: &str| {
        !area.is_empty()
            && area.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || " -_/,".contains(c))
    };
    if !area.is_some_and(plain) {
        return Some(format!("commit {id}: `{subject}`: begin with `area: `"));
    }
    (length > LONGEST).then(|| format!("commit {id}: `{subject}`: {length} characters, at most {LONGEST}"))
}
