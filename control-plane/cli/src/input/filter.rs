//! Which rules, guards or routes to show.

use clap::{Args, ValueEnum};
use damper_proto::v1;

use crate::error::CliError;

/// Each option narrows the list; names are compared as they are written.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    #[command(flatten)]
    names: NameArgs,
    /// Only rules of this mode
    #[arg(long)]
    mode: Option<Mode>,
}

/// The part of a filter that is about the key.
#[derive(Args, Debug)]
pub(crate) struct NameArgs {
    /// Only this caller ('*' finds those that say '*')
    #[arg(long, value_name = "SERVICE")]
    caller: Option<String>,
    /// Only this cluster of callers
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Only this callee
    #[arg(long, value_name = "SERVICE")]
    callee: Option<String>,
    /// Only this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only where one of the four names contains this
    #[arg(long, default_value = "", hide_default_value = true)]
    text: String,
    /// Only of this owner ('' = without an owner)
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
}

impl FilterArgs {
    /// The wire's form.
    pub(crate) fn filter(&self) -> v1::RuleFilter {
        v1::RuleFilter { mode: self.mode.map(|mode| v1::Mode::from(mode).into()), ..self.names.filter() }
    }
}

impl NameArgs {
    /// The wire's form.
    pub(crate) fn filter(&self) -> v1::RuleFilter {
        v1::RuleFilter {
            caller_service: self.caller.clone(),
            caller_cluster: self.cluster.clone(),
            callee_service: self.callee.clone(),
            callee_method: self.method.clone(),
            mode: None,
            text: self.text.clone(),
            owner: self.owner.clone(),
        }
    }
}

/// Over how long rates are taken.
#[derive(Args, Debug)]
pub(crate) struct WindowArgs {
    /// Over how long rates are taken: 5s, 10s or 1m [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    window: Option<std::time::Duration>,
}

impl WindowArgs {
    /// The wire's form; none where the server's default is wanted.
    pub(crate) fn wire(&self) -> Result<Option<prost_types::Duration>, CliError> {
        let wire = self.window.map(prost_types::Duration::try_from).transpose();
        wire.map_err(|_| CliError::Usage("--window: is too long".to_owned()))
    }
}

/// How far a rule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Calls pass untouched
    Off,
    /// Decisions are made and counted, nothing is done
    Observe,
    /// Decisions are carried out
    Enforce,
}

impl From<Mode> for v1::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Observe => Self::Observe,
            Mode::Enforce => Self::Enforce,
        }
    }
}

/// A mode's name; `-` where there is none.
pub(crate) fn mode_name(number: i32) -> &'static str {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Off) => "off",
        Ok(v1::Mode::Observe) => "observe",
        Ok(v1::Mode::Enforce) => "enforce",
        Ok(v1::Mode::Unspecified) => "-",
        Err(_) => "unknown",
    }
}
