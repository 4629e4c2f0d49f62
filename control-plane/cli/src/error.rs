//! Errors and their exit statuses.
//!
//! The numbers are those of BSD's `sysexits.h`, so that scripts distinguish usage (64), invalid input (65),
//! not found (66), unavailable (69), internal errors (70), input or output (74), conflict (75), denied
//! (77), configuration (78) and findings (79). `diff` has its own: 0 no difference, 1 differences, 2 error.
//! `rules to` ends with 1 if its target does not do the same. So does a write with `--wait`: 1 written, but
//! not delivered in time.
//!
//! Messages are complete: one line per fault, with field, value and allowed values.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Wrong arguments.
    #[error("{0}")]
    Usage(String),
    /// Invalid input, found here or by the server; one line per fault.
    #[error("{}", .0.join("\n"))]
    Data(Vec<String>),
    /// A resource was not found.
    #[error("{0}")]
    Missing(String),
    /// The server or its store is unavailable.
    #[error("{0}")]
    Unavailable(String),
    /// A concurrent change came first.
    #[error("{0}")]
    Conflict(String),
    /// The server denied the request.
    #[error("{0}")]
    Denied(String),
    /// Findings, already printed: only the exit status of `lint` and `doctor`.
    #[error("")]
    Findings,
    /// Invalid configuration of a server; one line per fault.
    #[error("{}", .0.join("\n"))]
    Config(Vec<String>),
    /// Internal error of the server.
    #[error("{0}")]
    Defect(String),
    /// A failed read or write of a file or stream.
    #[error("{what}: {source}")]
    Io {
        /// Name of the file or stream.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The demo failed to start or broke off.
    #[error("{0:#}")]
    Demo(anyhow::Error),
    /// Manifests differ from the server, or a translation from its rules: only the exit status.
    #[error("")]
    Differs,
    /// Written, but not delivered in time to the affected clients.
    #[error("{0}")]
    Undelivered(String),
    /// The command of `proxy try` has failed: only its exit status.
    #[error("")]
    OfCommand(u8),
    /// Any error of `diff`, which has one exit status for all of them.
    #[error("{0}")]
    OfDiff(Box<Self>),
}

impl CliError {
    /// One fault in the input.
    pub(crate) fn data(fault: impl Display) -> Self {
        Self::Data(vec![fault.to_string()])
    }

    /// A failed read or write; `what` names the file or stream.
    pub(crate) fn io(what: impl Display) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.to_string(), source }
    }

    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Differs | Self::Undelivered(_) => 1,
            Self::OfDiff(_) => 2,
            Self::OfCommand(code) => *code,
            Self::Usage(_) => 64,
            Self::Data(_) => 65,
            Self::Missing(_) => 66,
            Self::Unavailable(_) => 69,
            Self::Defect(_) => 70,
            Self::Demo(error) => error.downcast_ref::<Self>().map_or(70, Self::code),
            Self::Io { .. } => 74,
            Self::Conflict(_) => 75,
            Self::Denied(_) => 77,
            Self::Config(_) => 78,
            Self::Findings => 79,
        }
    }

    /// True if the reader of the output is gone, as in `damper rules list | head`: not an error.
    fn is_closed_pipe(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::BrokenPipe,
            Self::OfDiff(inner) => inner.is_closed_pipe(),
            _ => false,
        }
    }

    /// Prints the error on stderr, each line marked, and returns the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        if self.is_closed_pipe() {
            return ExitCode::SUCCESS;
        }
        for line in self.to_string().lines() {
            print_message(format_args!("error: {line}"));
        }
        ExitCode::from(self.code())
    }
}

/// Prints a line on stderr. Errors are ignored: there is no other place to report them.
pub(crate) fn print_message(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Returns the path unchanged, or the option that a field of the header came from.
pub(crate) fn as_is(field: &str) -> String {
    match field.strip_prefix("options.").or_else(|| field.strip_prefix("header.")) {
        Some(option) => format!("--{}", option.replace('_', "-")),
        None => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_sysexit() {
        let io = || io::Error::other("disk on fire");
        let table = [
            (CliError::Differs, 1),
            (CliError::Undelivered(String::new()), 1),
            (CliError::OfDiff(Box::new(CliError::Missing(String::new()))), 2),
            (CliError::Usage(String::new()), 64),
            (CliError::data(""), 65),
            (CliError::Missing(String::new()), 66),
            (CliError::Unavailable(String::new()), 69),
            (CliError::Defect(String::new()), 70),
            (CliError::Demo(anyhow::anyhow!("")), 70),
            (CliError::Demo(CliError::Unavailable(String::new()).into()), 69),
            (CliError::io("x")(io()), 74),
            (CliError::Conflict(String::new()), 75),
            (CliError::Denied(String::new()), 77),
            (CliError::Config(Vec::new()), 78),
            (CliError::Findings, 79),
        ];
        for (error, code) in table {
            assert_eq!(error.code(), code, "{error:?}");
        }
    }

    #[test]
    fn closed_pipe_is_no_failure_even_within_diff() {
        let closed = || CliError::io("standard output")(io::ErrorKind::BrokenPipe.into());
        assert!(closed().is_closed_pipe());
        assert!(CliError::OfDiff(Box::new(closed())).is_closed_pipe());
        assert!(!CliError::io("x")(io::ErrorKind::NotFound.into()).is_closed_pipe());
    }
}
