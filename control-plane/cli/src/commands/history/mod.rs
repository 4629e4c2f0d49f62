//! `damper history [KEY]`: changes of all resources with author, time and reason, newest first.

mod diff;

use clap::{Args, Subcommand};
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::output::changes::{ChangesArgs, table};
use crate::output::show;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Longest page of the server.
const PAGE: u32 = 1000;

/// Arguments of `damper history`.
#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    #[command(subcommand)]
    command: Option<HistoryCommand>,
    #[command(flatten)]
    changes: ChangesArgs,
    /// Number of changes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Commands of the history.
#[derive(Debug, Subcommand)]
enum HistoryCommand {
    /// Show settings that differ between two revisions
    Diff(diff::DiffArgs),
}

/// Prints the changes.
pub(crate) async fn run(session: &Session, args: HistoryArgs) -> Result<(), CliError> {
    if let Some(HistoryCommand::Diff(args)) = args.command {
        return diff::run(session, args).await;
    }
    let filter = args.changes.filter()?;
    let client = Client::connect(&session.server).await?;
    let listed = list(&client, &filter, args.limit).await?;
    show(session.format, &listed, || table(&listed.changes).to_string())?;
    for change in &listed.changes {
        let (shown, all) = (change.objects.len(), change.object_count);
        if shown < all as usize {
            let revision = change.revision;
            print_message(format_args!("revision {revision}: {shown} of {all} changed resources shown"));
        }
    }
    if listed.next_page_token.is_empty() && listed.oldest_revision > 0 {
        print_message(format_args!("the history starts at revision {}", listed.oldest_revision));
    }
    Ok(())
}

/// Returns the newest changes that match the filter.
async fn list(
    client: &Client,
    filter: &v1::ChangeFilter,
    limit: u32,
) -> Result<v1::ListChangesResponse, CliError> {
    let mut changes = Vec::new();
    let mut page_token = String::new();
    loop {
        let left = limit - u32::try_from(changes.len()).unwrap_or(limit);
        let page_size = left.min(PAGE);
        let request = v1::ListChangesRequest { filter: Some(filter.clone()), page_size, page_token };
        let page = client.answer(client.history.clone().list_changes(request)).await?;
        changes.extend(page.changes);
        if page.next_page_token.is_empty() || changes.len() >= limit as usize {
            return Ok(v1::ListChangesResponse { changes, ..page });
        }
        page_token = page.next_page_token;
    }
}
