//! What is wrong with manifests: every problem, each with its document, line and field.

use std::fmt;

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which document of the text, from 1; none where the text as a whole is meant.
    pub document: Option<usize>,
    /// The line in the text, from 1, as far as known.
    pub line: Option<u64>,
    /// The field by its path in the document; empty where the document as a whole is meant.
    pub path: String,
    /// What is wrong, with the value and the bound.
    pub problem: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { document, line, path, problem } = self;
        if let Some(document) = document {
            write!(f, "document {document}")?;
        }
        if let Some(line) = line {
            write!(f, "{}line {line}", if document.is_some() { ", " } else { "" })?;
        }
        if document.is_some() || line.is_some() {
            f.write_str(": ")?;
        }
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        f.write_str(problem)
    }
}

/// Everything that is wrong with a text of manifests, in its order; shown one problem a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The problems, at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}
