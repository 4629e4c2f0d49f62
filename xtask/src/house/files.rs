//! The files that the checks read, each with its tokens.

use std::collections::HashSet;

use anyhow::{Context as _, Result};

use super::source::{Kind, Language, Token, tokens};
use crate::command::{Command, root};

/// A file with its path from the root of the repository.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) language: Language,
    pub(crate) text: &'static str,
    pub(crate) use_: Use,
    pub(crate) tokens: Vec<Token>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Product,
    Tool,
    Test,
}

impl File {
    pub(crate) fn new(path: String, text: &'static str) -> Option<Self> {
        let language = language(&path)?;
        Some(Self { language, text, use_: use_of(&path), tokens: tokens(text, language), path })
    }

    /// The tokens of the product, without comments.
    pub(crate) fn code(&self) -> Vec<&Token> {
        self.tokens.iter().filter(|token| token.kind != Kind::Comment && !token.test).collect()
    }

    pub(crate) fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// The lines of tests inside the file; all of them in a test file.
    pub(crate) fn test_lines(&self) -> usize {
        if self.use_ == Use::Test {
            return self.lines();
        }
        let tests = self.tokens.chunk_by(|one, next| one.test == next.test).filter(|run| run[0].test);
        tests.map(|run| run[run.len() - 1].line - run[0].line + 1).sum()
    }

    pub(crate) fn product_lines(&self) -> usize {
        if self.use_ == Use::Product { self.lines() - self.test_lines() } else { 0 }
    }

    /// The module's path inside its crate: `a/mod.rs` and `a.rs` are `[a]`, `lib.rs` is empty.
    pub(crate) fn module(&self) -> Vec<&str> {
        let inside = self.path.rsplit_once("/src/").map_or(self.path.as_str(), |(_, inside)| inside);
        let mut module: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
        if matches!(module.last(), Some(&("mod" | "lib" | "main"))) {
            module.pop();
        }
        module
    }
}

/// Returns the language of a file that is read; lists of other packages are not.
fn language(path: &str) -> Option<Language> {
    if path.ends_with("package-lock.json") {
        return None;
    }
    Some(match path.rsplit_once('.')?.1 {
        "rs" => Language::Rust,
        "proto" => Language::Proto,
        "ts" | "js" | "mjs" => Language::Script,
        "svelte" | "html" => Language::Svelte,
        "md" => Language::Prose,
        "css" => Language::Css,
        "go" => Language::Go,
        "json" => Language::Json,
        "yaml" | "yml" | "toml" | "conf" | "service" | "ci/run" => Language::Settings,
        _ => return None,
    })
}

pub(crate) fn use_of(path: &str) -> Use {
    let mut folders: Vec<&str> = path.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    let below = |names: &[&str]| folders.iter().any(|folder| names.contains(folder));
    let top = folders.first().copied().unwrap_or_default();
    let inner_tests = folders.iter().skip(1).any(|folder| ["tests", "e2e", "benches"].contains(folder));
    if name == "tests.rs" || name.ends_with(".test.ts") || name.ends_with(".test.mjs") || inner_tests {
        Use::Test
    } else if ["tests", "bench", "xtask", "fuzz"].contains(&top)
        || below(&["examples", "screenshots", "speed", "testing"]) && top != "docs"
    {
        Use::Tool
    } else {
        Use::Product
    }
}

/// Lists the files in git, with those that are new and not ignored.
pub(crate) fn list(new_ones: bool) -> Result<Vec<String>> {
    let others: &[&str] = if new_ones { &["--others", "--exclude-standard"] } else { &[] };
    let listed = Command::new("git").args(["ls-files", "--cached"]).args(others).output()?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// Reads and lexes all files of a known language, on as many threads as there are processors.
pub(crate) fn read() -> Result<Vec<File>> {
    let paths = list(true)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = std::thread::scope(|scope| {
        let part = |first: usize| paths.iter().skip(first).step_by(threads);
        let reads =
            (0..threads).map(|first| scope.spawn(move || part(first).filter_map(open).collect::<Vec<_>>()));
        let reads: Vec<_> = reads.collect();
        reads.into_iter().map(|read| read.join()).collect::<Vec<_>>()
    });
    let mut files = Vec::new();
    for part in parts {
        files.extend(part.ok().context("a file broke the lexer")?);
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    mark_test_modules(&mut files);
    Ok(files)
}

/// Files in git that are deleted and not committed yet are not there.
fn open(path: &String) -> Option<File> {
    language(path)?;
    let text = std::fs::read_to_string(root().join(path)).ok()?;
    File::new(path.clone(), text.leak())
}

/// Files of modules that are declared below `#[cfg(test)]` are tests.
fn mark_test_modules(files: &mut [File]) {
    let mut tests = HashSet::new();
    for file in files.iter().filter(|file| file.language == Language::Rust) {
        let Some(folder) = module_folder(&file.path) else { continue };
        for three in file.tokens.windows(3) {
            if three[0].test && three[0].is("mod") && three[2].is(";") {
                tests.insert(format!("{folder}/{}", three[1].text));
            }
        }
    }
    for file in files {
        let stem = file.path.trim_end_matches(".rs");
        if tests
            .iter()
            .any(|test| stem == test || stem.strip_prefix(test).is_some_and(|rest| rest.starts_with('/')))
        {
            file.use_ = Use::Test;
        }
        if file.use_ == Use::Test {
            file.tokens.iter_mut().for_each(|token| token.test = true);
        }
    }
}

/// The folder of a module's children.
fn module_folder(path: &str) -> Option<&str> {
    let stem = path.strip_suffix(".rs")?;
    let (folder, name) = stem.rsplit_once('/')?;
    Some(if ["lib", "main", "mod"].contains(&name) { folder } else { stem })
}
