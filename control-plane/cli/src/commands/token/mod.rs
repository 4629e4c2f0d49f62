//! `damper token`: tokens and their roles.

mod create;
mod list;
mod revoke;

use clap::{Args, Subcommand, ValueEnum};
use damper_proto::v1;

use crate::error::CliError;
use crate::remote::session::Session;
use crate::remote::write::author_or_user;

/// Commands of tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it once
    Create(create::CreateArgs),
    /// List tokens, without their secrets
    List(list::ListArgs),
    /// Revoke a token and end its sessions and connections
    Revoke(revoke::RevokeArgs),
}

/// Runs the command.
pub(crate) async fn run(session: &Session, command: TokenCommand) -> Result<(), CliError> {
    match command {
        TokenCommand::Create(args) => create::run(session, args).await,
        TokenCommand::List(args) => list::run(session, args).await,
        TokenCommand::Revoke(args) => revoke::run(session, args).await,
    }
}

/// Options of every change of tokens.
#[derive(Args, Debug)]
struct ChangeArgs {
    /// Let the server check the command, but change nothing
    #[arg(long)]
    dry_run: bool,
    /// Reason of the change, recorded in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Author of the change, recorded in the history [default: the system's user@host]
    #[arg(long, value_name = "NAME", env = "DAMPER_AUTHOR", hide_env_values = true)]
    author: Option<String>,
    /// Idempotency key: the same command, repeated with this key within 24 h, changes nothing
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
}

impl ChangeArgs {
    fn options(&self) -> v1::WriteOptions {
        v1::WriteOptions {
            validate_only: self.dry_run,
            request_id: self.request_id.clone(),
            reason: self.reason.clone(),
            author: author_or_user(self.author.clone()),
            ..v1::WriteOptions::default()
        }
    }
}

/// Role of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Reads everything except the list of tokens
    Viewer,
    /// Viewer that also writes rules
    Editor,
    /// Editor that also writes guards and kill switches, overrides the limit of attempts per request, and
    /// rolls back all rules, guards and queues at once
    Operator,
    /// Operator that also creates and revokes tokens
    Admin,
    /// For SDKs and proxies: receives rules and sends reports
    Agent,
}

impl Role {
    fn wire(self) -> v1::Role {
        match self {
            Self::Viewer => v1::Role::Viewer,
            Self::Editor => v1::Role::Editor,
            Self::Operator => v1::Role::Operator,
            Self::Admin => v1::Role::Admin,
            Self::Agent => v1::Role::Agent,
        }
    }
}

/// Returns the name of a role.
pub(crate) fn role_name(role: v1::Role) -> &'static str {
    match role {
        v1::Role::Viewer => "viewer",
        v1::Role::Editor => "editor",
        v1::Role::Operator => "operator",
        v1::Role::Admin => "admin",
        v1::Role::Agent => "agent",
        v1::Role::Unspecified => "unknown",
    }
}

/// Returns the time of an end, or `never`.
pub(crate) fn end(at: Option<prost_types::Timestamp>) -> String {
    at.map_or_else(|| "never".to_owned(), |at| prost_types::Timestamp { nanos: 0, ..at }.to_string())
}
