//! Commits: a short subject `area: what changes`, and a body with what was wrong or missing.
//!
//! A commit of docs or tests alone needs no body. `xtask/prose/commits-since.txt` has the commits after which
//! subjects (first line) and bodies (second line) are checked.

use anyhow::{Context as _, Result};

use crate::command::{Command, root};
use crate::house::files::{Use, use_of};

const SINCE: &str = "xtask/prose/commits-since.txt";
const LONGEST: usize = 60;

/// Checks the commits of a range, by default all after those that are stored.
pub(super) fn check(range: Option<&str>) -> Result<Vec<String>> {
    let stored = std::fs::read_to_string(root().join(SINCE)).context(SINCE)?;
    let mut since = stored.lines().map(|commit| format!("{commit}..HEAD"));
    let mut next = || range.map(str::to_owned).or_else(|| since.next()).context(SINCE);
    let (subjects, bodies) = (log(&next()?)?, log(&next()?)?);
    let faults = parsed(&subjects).filter_map(|commit| subject_fault(commit.id, commit.subject));
    Ok(faults.chain(parsed(&bodies).filter_map(|commit| body_fault(&commit))).collect())
}

/// Lists the commits of a range, each as id, subject, body and paths.
fn log(range: &str) -> Result<String> {
    let format = "--format=%x1e%h%x1f%s%x1f%b%x1f";
    let log = Command::new("git").args(["log", "--no-merges", "--name-only", format, range]).output();
    log.context("the commits need the whole history: `git fetch --unshallow`")
}

pub(super) struct Commit<'l> {
    id: &'l str,
    subject: &'l str,
    body: &'l str,
    paths: Vec<&'l str>,
}

pub(super) fn parsed(log: &str) -> impl Iterator<Item = Commit<'_>> {
    log.split('\u{1e}').filter_map(|commit| {
        let mut parts = commit.split('\u{1f}').map(str::trim);
        let (id, subject, body) = (parts.next()?, parts.next()?, parts.next()?);
        let paths = parts.next()?.lines().filter(|path| !path.is_empty()).collect();
        Some(Commit { id, subject, body, paths })
    })
}

pub(super) fn subject_fault(id: &str, subject: &str) -> Option<String> {
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

pub(super) fn body_fault(commit: &Commit<'_>) -> Option<String> {
    let Commit { id, subject, body, paths } = commit;
    let is_free = |path: &&str| {
        path.starts_with("docs/")
            || path.starts_with("tests/")
            || path.ends_with(".md")
            || use_of(path) == Use::Test
    };
    let needs = body.is_empty() && !paths.iter().all(is_free);
    needs.then(|| format!("commit {id}: `{subject}`: add a body: what was wrong or missing"))
}
