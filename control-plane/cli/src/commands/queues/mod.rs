//! `damper queues`: single queues by name.

mod delete;
mod get;
mod list;
mod pause;
mod put;
mod stats;

use clap::Subcommand;
use damper_proto::{convert, manifest, v1};

use crate::error::{CliError, print_message};
use crate::input::filter::mode_name;
use crate::input::manifests::ManifestItem;
use crate::output::figures::{age, now};
use crate::output::{self, Align, Format, Table, printable};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Commands of queues.
#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// Show one queue
    Get(get::GetArgs),
    /// List queues
    List(list::ListArgs),
    /// Create or replace the queue of one manifest
    Put(put::PutArgs),
    /// Delete one queue without jobs that have not ended
    Delete(delete::DeleteArgs),
    /// Stop the deliveries of a queue; with a --reason
    Pause(pause::PauseArgs),
    /// Start the deliveries of a queue again
    Resume(pause::PauseArgs),
    /// Show depth, held routes and counts of queues
    Stats(stats::StatsArgs),
}

/// Runs the command.
pub(crate) async fn run(session: &Session, command: QueuesCommand) -> Result<(), CliError> {
    match command {
        QueuesCommand::Get(args) => get::run(session, args).await,
        QueuesCommand::List(args) => list::run(session, args).await,
        QueuesCommand::Put(args) => put::run(session, args).await,
        QueuesCommand::Delete(args) => delete::run(session, args).await,
        QueuesCommand::Pause(args) => pause::pause(session, args).await,
        QueuesCommand::Resume(args) => pause::resume(session, args).await,
        QueuesCommand::Stats(args) => stats::run(session, args).await,
    }
}

/// Prints the result of a put.
async fn finish(
    session: &Session,
    client: &Client,
    write: &WriteArgs,
    response: &v1::PutQueueResponse,
    done: &str,
) -> Result<(), CliError> {
    let queue = response.queue.clone().unwrap_or_default();
    let revision = queue.revision;
    let words = printable(&ManifestItem::Queue(queue).words());
    warn(&warnings(&words, None, &response.findings));
    let done = if response.changed { done } else { "unchanged" };
    output::show(session.format, response, || format!("{words} {done}\n"))?;
    print_message(format_args!("revision {}{}", response.revision, write.suffix()));
    write.delivered(client, Some(revision)).await
}

/// Prints queues; as YAML and JSON in the form of `apply -f`.
fn show(format: Format, queues: &[v1::Queue]) -> Result<(), CliError> {
    match format {
        Format::Table => output::data(&table(queues).to_string()),
        Format::Yaml => output::data(&manifest::to_yaml(queues)),
        Format::Json => output::data(&(manifest::to_json(queues) + "\n")),
    }
}

fn table(queues: &[v1::Queue]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("NAME", Left),
        ("MODE", Left),
        ("ATTEMPTS", Right),
        ("WORKERS", Left),
        ("PAUSED", Left),
        ("OWNER", Left),
        ("REVISION", Right),
        ("AGE", Right),
        ("BY", Left),
    ]);
    let now = now();
    for queue in queues {
        // A newer server may send unknown settings.
        let read = convert::queue(queue);
        let attempts = read
            .map_or_else(|_| "unknown".to_owned(), |queue| queue.settings().retry().max_attempts.to_string());
        table.row([
            queue.name.clone(),
            mode_name(queue.policy.as_ref().map_or(0, |policy| policy.mode)).to_owned(),
            attempts,
            queue.workers.join(", "),
            queue.paused.clone(),
            queue.owner.clone(),
            queue.revision.to_string(),
            age(queue.updated_at.as_ref(), now),
            queue.updated_by.clone(),
        ]);
    }
    table
}
