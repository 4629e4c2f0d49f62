//! `damper rules`: single rules by key.

mod delete;
mod from;
mod get;
mod init;
mod list;
mod promote;
mod put;
mod to;

use clap::Subcommand;
use damper_core::BreakerMode;
use damper_proto::{manifest, v1};

use crate::error::CliError;
use crate::input::filter::mode_name;
use crate::input::key;
use crate::output::figures::{age, now};
use crate::output::{self, Align, Format, Table};
use crate::remote::session::Session;

/// Commands of rules.
#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// Show one rule
    Get(get::GetArgs),
    /// List rules
    List(list::ListArgs),
    /// Create or replace the rule of one manifest
    Put(put::PutArgs),
    /// Delete one rule
    Delete(delete::DeleteArgs),
    /// Propose a rule in observe mode, with values from recent measurements
    Init(init::InitArgs),
    /// Advance the mode of a rule: off -> observe -> enforce
    Promote(promote::PromoteArgs),
    /// Write rules as configuration of a mesh or a client, with a report of what changes or is lost
    To(Box<to::ToArgs>),
    /// Read configuration of a mesh or a client as rules in observe mode, without a server
    From(from::FromArgs),
}

pub(crate) use self::promote::{PromoteArgs, run as promote};

/// Runs the command.
pub(crate) async fn run(session: &Session, command: RulesCommand) -> Result<(), CliError> {
    match command {
        RulesCommand::Get(args) => get::run(session, args).await,
        RulesCommand::List(args) => list::run(session, args).await,
        RulesCommand::Put(args) => put::run(session, args).await,
        RulesCommand::Delete(args) => delete::run(session, args).await,
        RulesCommand::Init(args) => init::run(session, args).await,
        RulesCommand::Promote(args) => promote::run(session, args).await,
        RulesCommand::To(args) => to::run(session, &args).await,
        RulesCommand::From(args) => from::run(session, &args),
    }
}

/// Prints rules; as YAML and JSON in the form of `apply -f`.
fn show(format: Format, rules: &[v1::Rule]) -> Result<(), CliError> {
    match format {
        Format::Table => output::data(&table(rules).to_string()),
        Format::Yaml => output::data(&manifest::to_yaml(rules)),
        Format::Json => output::data(&(manifest::to_json(rules) + "\n")),
    }
}

fn table(rules: &[v1::Rule]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("MODE", Left),
        ("ATTEMPTS", Right),
        ("BREAKER", Left),
        ("OWNER", Left),
        ("REVISION", Right),
        ("AGE", Right),
        ("BY", Left),
    ]);
    let now = now();
    for rule in rules {
        let policy = rule.policy.clone().unwrap_or_default();
        let figures = [
            mode_name(policy.mode).to_owned(),
            attempts(&policy),
            breaker(&policy),
            rule.owner.clone(),
            rule.revision.to_string(),
            age(rule.updated_at.as_ref(), now),
            rule.updated_by.clone(),
        ];
        table.row(key::columns(rule.key.as_ref()).into_iter().chain(figures));
    }
    table
}

/// Attempts per call; the default of the engine if the rule sets none.
fn attempts(policy: &v1::Policy) -> String {
    let retry = policy.retry.as_ref();
    let default = damper_core::Retry::default().max_attempts;
    retry.map_or(1, |retry| retry.max_attempts.unwrap_or(default)).to_string()
}

fn breaker(policy: &v1::Policy) -> String {
    match damper_proto::convert::policy(policy) {
        Ok(policy) => policy.retry_breaker.map_or_else(
            || "off".to_owned(),
            |breaker| match breaker.mode {
                BreakerMode::Credit => format!("credit {}", breaker.earn),
                BreakerMode::Ratio => format!("ratio {}", breaker.ratio),
            },
        ),
        // From a newer server.
        Err(_) => String::new(),
    }
}
