//! What can go wrong, and the exit status it ends with.
//!
//! The numbers are those of BSD's `sysexits.h`, so that scripts can tell a typing error (64) from refused
//! input (65), something named that does not exist (66), an unreachable server (69), a defect (70), a failing
//! read or write (74), a conflict with somebody else's change (75), a denial (77), bad settings (78) and
//! findings (79).
//! `diff` has its own: 0 nothing differs, 1 something does, 2 any error; and so has a write with `--wait`: 1 it is
//! written, but has not arrived in time.
//!
//! Messages are complete: one line per fault, with the field, the value and the bound where there are any.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// How a command can fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command was called in a way that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Input was refused, here or by the server; one line per fault.
    #[error("{}", .0.join("\n"))]
    Data(Vec<String>),
    /// Something named by the user does not exist.
    #[error("{0}")]
    Missing(String),
    /// The server, or what the server needs, can not be reached.
    #[error("{0}")]
    Unavailable(String),
    /// Somebody else's change came first.
    #[error("{0}")]
    Conflict(String),
    /// The server does not let us.
    #[error("{0}")]
    Denied(String),
    /// Something that deserves a look was found, and shown: `lint` and `doctor` say so by their exit status alone.
    #[error("")]
    Findings,
    /// The settings of a server are bad; one line per fault.
    #[error("{}", .0.join("\n"))]
    Config(Vec<String>),
    /// The server failed in a way that it should not.
    #[error("{0}")]
    Defect(String),
    /// A file or stream could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// Which one.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The demo could not start or broke off.
    #[error("{0:#}")]
    Demo(anyhow::Error),
    /// Manifests differ from what the server has: `diff` says so by its exit status alone.
    #[error("")]
    Differs,
    /// Something was written, but has not arrived in time at those whom it concerns.
    #[error("{0}")]
    Undelivered(String),
    /// Any error of `diff`, which has its own exit status for all of them.
    #[error("{0}")]
    OfDiff(Box<Self>),
}

impl CliError {
    /// One fault in the input.
    pub(crate) fn data(fault: impl Display) -> Self {
        Self::Data(vec![fault.to_string()])
    }

    /// A read or write that failed; `what` names the file or stream.
    pub(crate) fn io(what: impl Display) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.to_string(), source }
    }

    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Differs | Self::Undelivered(_) => 1,
            Self::OfDiff(_) => 2,
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

    /// True if nobody reads our output any more, as in `damper rules list | head`: not a failure.
    fn is_closed_pipe(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::BrokenPipe,
            Self::OfDiff(inner) => inner.is_closed_pipe(),
            _ => false,
        }
    }

    /// Says what went wrong on stderr, each line marked, and gives the exit status.
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

/// Says something on stderr. Where nobody can read it nothing is lost that would matter.
pub(crate) fn print_message(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Takes the path as it is; what is said with every write came from an option.
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
