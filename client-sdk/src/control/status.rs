//! Status of Damper in this process, for health pages and logs.

use std::fmt;
use std::time::Duration;

use damper_core::Mode;
use damper_proto::v1;

/// Status of Damper in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Source of the rules in force.
    pub source: Source,
    /// Id of the store that the rules are from; empty if from none, or if a new snapshot is required.
    pub epoch: String,
    /// Revision of the rules; 0 with an empty epoch.
    pub revision: u64,
    /// Number of rules in force.
    pub rules: usize,
    /// Number of rules, guards and kills that were rejected because this process cannot read them.
    pub refused: usize,
    /// Number of kills in force; [`Damper::for_each_kill`](crate::Damper::for_each_kill) lists them.
    pub kills: usize,
    /// Mode to which `DAMPER_MODE` or the override file reduces all rules; `None` without an override.
    pub override_mode: Option<Mode>,
    /// True while connected to the control plane.
    pub connected: bool,
    /// True while the replica tried last denies access: the token or client certificate is missing, invalid
    /// or for another service. See `last_problem`.
    pub denied: bool,
    /// Reason why there is no stream, or why the last one ended.
    pub last_problem: Option<String>,
}

/// Source of the rules in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// No rules: nothing is retried.
    #[default]
    BuiltIn,
    /// The state file.
    LastKnownGood,
    /// The control plane, since this process began.
    Live,
    /// [`Damper::fixed`](crate::Damper::fixed) or [`Damper::off`](crate::Damper::off), without a control
    /// plane.
    Fixed,
}

/// The rules of the control plane did not arrive in time. The service can run anyway, as described by its
/// [`Status`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("no rules from the control plane within {waited:?}; {rules}{problem}", rules = in_use(.status.source), problem = problem(.status))]
#[non_exhaustive]
pub struct NotReady {
    /// Time waited.
    pub waited: Duration,
    /// Status at the end of the wait.
    pub status: Status,
}

/// Same as `Display`: `main() -> Result<(), Box<dyn Error>>` prints an error by `Debug`.
impl fmt::Debug for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn in_use(source: Source) -> &'static str {
    match source {
        Source::BuiltIn => "the service runs without rules",
        Source::LastKnownGood => "the service runs with the rules that it saved in its `state_dir`",
        Source::Live => "the service runs with the rules of the control plane",
        Source::Fixed => "the service runs with fixed rules",
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
