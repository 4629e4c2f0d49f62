//! What a service runs on at present, for its own health page and logs.

use std::fmt;
use std::time::Duration;

use damper_core::Mode;
use damper_proto::v1;

/// What a service runs on at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Where the rules in force came from.
    pub source: Source,
    /// The store they are from; empty if they are from none, or must be fetched anew.
    pub epoch: String,
    /// Its revision that they are of; 0 with an empty epoch.
    pub revision: u64,
    /// How many rules are in force.
    pub rules: usize,
    /// How many of the rules, guards and kills sent could not be understood and are refused.
    pub refused: usize,
    /// How many kills are in force; [`Damper::for_each_kill`](crate::Damper::for_each_kill) shows them.
    pub kills: usize,
    /// What `DAMPER_MODE` or the override file reduces all rules to; none if they do not.
    pub override_mode: Option<Mode>,
    /// True while the control plane answers on a stream of this process.
    pub connected: bool,
    /// True while the control plane, the replica that was asked last, does not let this process in: its token or
    /// client certificate is missing, is not valid or is for another service, see `last_problem`.
    pub denied: bool,
    /// Why there is no stream, or why the last one ended.
    pub last_problem: Option<String>,
}

/// Where the rules in force came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// No rules: nothing is retried.
    #[default]
    BuiltIn,
    /// The file in the state folder.
    LastKnownGood,
    /// The control plane, since this process began.
    Live,
    /// [`Damper::fixed`](crate::Damper::fixed) or [`Damper::off`](crate::Damper::off): there is no control plane.
    Fixed,
}

/// The control plane's rules did not arrive in time. The service can work all the same, on what its
/// [`Status`] says.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("no live rules within {waited:?}, running on {}{}", .status.source, problem(.status))]
#[non_exhaustive]
pub struct NotReady {
    /// How long was waited.
    pub waited: Duration,
    /// What it runs on instead.
    pub status: Status,
}

/// As it is displayed, because `main() -> Result<(), Box<dyn Error>>` prints an error by `Debug`.
impl fmt::Debug for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn problem(status: &Status) -> String {
    status.last_problem.as_ref().map_or_else(String::new, |problem| format!(": {problem}"))
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BuiltIn => "no rules",
            Self::LastKnownGood => "last known good",
            Self::Live => "live",
            Self::Fixed => "fixed",
        })
    }
}

impl From<Source> for v1::Source {
    fn from(source: Source) -> Self {
        match source {
            Source::BuiltIn => Self::BuiltIn,
            Source::LastKnownGood => Self::LastKnownGood,
            Source::Live => Self::Live,
            Source::Fixed => Self::Unspecified,
        }
    }
}
