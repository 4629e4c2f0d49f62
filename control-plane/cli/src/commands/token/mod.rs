//! `damper token`: who may do what.

mod create;
mod list;
mod revoke;

use clap::{Args, Subcommand, ValueEnum};
use damper_proto::v1;

use crate::error::CliError;
use crate::remote::session::Session;
use crate::remote::write::user_at_host;

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, this once
    Create(create::CreateArgs),
    /// Show all tokens, without what opens anything
    List(list::ListArgs),
    /// End a token, and what was opened with it
    Revoke(revoke::RevokeArgs),
}

/// Runs one of them.
pub(crate) async fn run(session: &Session, command: TokenCommand) -> Result<(), CliError> {
    match command {
        TokenCommand::Create(args) => create::run(session, args).await,
        TokenCommand::List(args) => list::run(session, args).await,
        TokenCommand::Revoke(args) => revoke::run(session, args).await,
    }
}

/// What is said with every change of tokens.
#[derive(Args, Debug)]
struct ChangeArgs {
    /// Check everything on the server, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Why; kept with the change
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Who makes the change [default: the system's user@host]
    #[arg(long, value_name = "NAME", env = "DAMPER_AUTHOR", hide_env_values = true)]
    author: Option<String>,
    /// Makes the request recognisable: repeated within 24 h it changes nothing
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
}

impl ChangeArgs {
    fn options(&self) -> v1::WriteOptions {
        v1::WriteOptions {
            validate_only: self.dry_run,
            request_id: self.request_id.clone(),
            reason: self.reason.clone(),
            author: self.author.clone().filter(|said| !said.is_empty()).unwrap_or_else(user_at_host),
            ..v1::WriteOptions::default()
        }
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Reads everything but the list of tokens
    Viewer,
    /// Writes rules
    Editor,
    /// Writes guards and kills, forces writes, rolls everything back
    Operator,
    /// Makes and revokes tokens
    Admin,
    /// Receives rules and reports, as an SDK does
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

/// A role in a word.
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

/// When something ends, or that it does not.
pub(crate) fn end(at: Option<prost_types::Timestamp>) -> String {
    at.map_or_else(|| "never".to_owned(), |at| prost_types::Timestamp { nanos: 0, ..at }.to_string())
}
