//! Faults of a text with document, line and field.

use std::fmt;

use damper_core::Fault;

/// A fault of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Document of the text, from 1; `None` for the text as a whole.
    pub document: Option<usize>,
    /// Line in the text, from 1, if known.
    pub line: Option<u64>,
    /// Path of the field in the document; empty for the document as a whole.
    pub path: String,
    /// Problem with the value and the allowed values.
    pub problem: String,
}

impl Problem {
    /// Returns a problem of the text as a whole.
    pub(crate) fn of_text(problem: &str) -> Self {
        Self { document: None, line: None, path: String::new(), problem: problem.to_owned() }
    }

    /// Returns the problem with its place in a file of one document: `scenario.yaml:3: duration: must be ...`.
    #[must_use]
    pub fn in_file(&self, file: impl fmt::Display) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{file}{line}: {}", Self { line: None, ..self.clone() })
    }
}

impl From<&Fault> for Problem {
    fn from(Fault { path, problem }: &Fault) -> Self {
        Self { path: path.clone(), ..Self::of_text(problem) }
    }
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

/// All faults of a text, in order; one line each.
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
