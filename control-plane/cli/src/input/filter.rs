//! Filters for rules, guards and routes.

use clap::{Args, ValueEnum};
use damper_proto::v1;

use crate::error::CliError;

/// Filter of a list; names must match exactly.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    #[command(flatten)]
    names: NameArgs,
    /// List only rules in this mode
    #[arg(long)]
    mode: Option<Mode>,
}

/// The part of a filter that concerns the key.
#[derive(Args, Debug)]
pub(crate) struct NameArgs {
    /// List only entries with this caller; '*' lists only those whose caller is *
    #[arg(long, value_name = "SERVICE")]
    caller: Option<String>,
    /// List only entries whose callers run in this cluster
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// List only entries with this callee
    #[arg(long, value_name = "SERVICE")]
    callee: Option<String>,
    /// List only entries with this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// List only entries whose caller, cluster, callee or method contains this text
    #[arg(long, default_value = "", hide_default_value = true)]
    text: String,
    /// List only rules and guards of this owner; '' lists those without an owner
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
}

impl FilterArgs {
    /// Returns the wire form.
    pub(crate) fn filter(&self) -> v1::RuleFilter {
        v1::RuleFilter { mode: self.mode.map(|mode| v1::Mode::from(mode).into()), ..self.names.filter() }
    }
}

impl NameArgs {
    /// Returns the wire form.
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

/// Window of rates.
#[derive(Args, Debug)]
pub(crate) struct WindowArgs {
    /// Time over which the rates are averaged: 5s, 10s or 1m [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    window: Option<std::time::Duration>,
}

impl WindowArgs {
    /// Returns the wire form; `None` for the server's default.
    pub(crate) fn wire(&self) -> Result<Option<prost_types::Duration>, CliError> {
        let wire = self.window.map(prost_types::Duration::try_from).transpose();
        wire.map_err(|_| CliError::Usage("--window: must be 5s, 10s or 1m".to_owned()))
    }
}

/// Mode of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Calls pass unchanged
    Off,
    /// Decisions are counted, not carried out
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

/// Returns the name of a mode; `-` if unset.
pub(crate) fn mode_name(number: i32) -> &'static str {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Off) => "off",
        Ok(v1::Mode::Observe) => "observe",
        Ok(v1::Mode::Enforce) => "enforce",
        Ok(v1::Mode::Unspecified) => "-",
        Err(_) => "unknown",
    }
}
