//! `damper jobs`: the jobs of queues.

mod body;
mod change;
mod filter;
mod get;
mod list;

use clap::Subcommand;

use crate::error::CliError;
use crate::remote::session::Session;

/// Commands of jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List the jobs of a queue
    List(list::ListArgs),
    /// Show one job with its failed deliveries, and why it is not delivered
    Get(get::GetArgs),
    /// Write the body of a job to standard output; recorded in the server's log
    Body(body::BodyArgs),
    /// Make waiting jobs due now
    Run(change::ChangeArgs),
    /// End waiting jobs
    Cancel(change::ChangeArgs),
    /// Make dead jobs wait again, with new attempts, one after the other
    Replay(change::ReplayArgs),
    /// Delete dead and ended jobs
    Purge(change::ChangeArgs),
}

/// Runs the command.
pub(crate) async fn run(session: &Session, command: JobsCommand) -> Result<(), CliError> {
    match command {
        JobsCommand::List(args) => list::run(session, args).await,
        JobsCommand::Get(args) => get::run(session, args).await,
        JobsCommand::Body(args) => body::run(session, args).await,
        JobsCommand::Run(args) => change::run(session, args).await,
        JobsCommand::Cancel(args) => change::cancel(session, args).await,
        JobsCommand::Replay(args) => change::replay(session, args).await,
        JobsCommand::Purge(args) => change::purge(session, args).await,
    }
}
