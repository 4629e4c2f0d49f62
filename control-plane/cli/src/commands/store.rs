//! `damper store`: a store that differs from the state of the server, and the decision of the operator.

use clap::{Args, Subcommand};
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::output::figures::{age, now};
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::author_or_user;

/// Commands of the store.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Show whether the store matches the state of the server
    Status(StatusArgs),
    /// Accept the contents of the store; all replicas and clients continue with them
    Accept(DecisionArgs),
    /// Write the state of the server into the store, then accept it
    Refill(DecisionArgs),
}

/// Arguments of `damper store status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {}

/// Arguments of `damper store accept` and `damper store refill`.
#[derive(Args, Debug)]
pub(crate) struct DecisionArgs {
    /// Why you accept the store as it is, or refill it; recorded in the history
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Let the server check the command, but change nothing
    #[arg(long)]
    dry_run: bool,
    /// Name of the person who gives the command, recorded in the history [default: the system's
    /// user@host]
    #[arg(long, value_name = "NAME", env = "DAMPER_AUTHOR", hide_env_values = true)]
    author: Option<String>,
}

/// Prints the state of the store or changes it.
pub(crate) async fn run(session: &Session, command: StoreCommand) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let own = own(&client).await?;
    let (args, refill) = match command {
        StoreCommand::Status(StatusArgs {}) => {
            return show(session.format, &own, || status_text(&own));
        }
        StoreCommand::Accept(args) => (args, false),
        StoreCommand::Refill(args) => (args, true),
    };
    let (found_epoch, found_revision) = match &own.unaccepted_store {
        Some(found) => (found.epoch.clone(), found.revision),
        // Clients may be ahead of a store that the server accepts.
        None => (own.epoch.clone(), own.revision),
    };
    let options = v1::WriteOptions {
        reason: args.reason,
        author: author_or_user(args.author),
        validate_only: args.dry_run,
        ..v1::WriteOptions::default()
    };
    let request = v1::AcceptStoreRequest { found_epoch, found_revision, refill, options: Some(options) };
    let accepted = client.answer(client.history.clone().accept_store(request)).await?;
    let suffix = if args.dry_run { " (dry run: nothing was changed)" } else { "" };
    show(session.format, &accepted, || {
        let v1::AcceptStoreResponse { epoch, revision, entries } = &accepted;
        format!("accepted: epoch {} at revision {revision}, {entries} entries\n", printable(epoch))
    })?;
    print_message(format_args!("revision {}{suffix}", accepted.revision));
    Ok(())
}

/// Returns the server that answers.
async fn own(client: &Client) -> Result<v1::Replica, CliError> {
    let listed = client.answer(client.fleet.clone().list_replicas(v1::ListReplicasRequest {})).await?;
    let own = listed.replicas.into_iter().find(|replica| replica.self_);
    own.ok_or_else(|| CliError::Missing("the server does not list itself".to_owned()))
}

fn status_text(own: &v1::Replica) -> String {
    let Some(found) = &own.unaccepted_store else {
        let (epoch, revision) = (printable(&own.epoch), own.revision);
        return format!("accepted: epoch {epoch} at revision {revision}\n");
    };
    let what = match found.epoch.is_empty() {
        true => "nothing".to_owned(),
        false => format!("epoch {} at revision {}", printable(&found.epoch), found.revision),
    };
    format!(
        "NOT ACCEPTED for {}: {}\n\
         in the store: {what}, {} entries\n\
         from memory:  epoch {} at revision {}, {} entries\n\
         Decide with `damper store refill --reason TEXT` or `damper store accept --reason TEXT`.\n",
        age(found.since.as_ref(), now()),
        printable(&found.problem),
        found.entries,
        printable(&found.known_epoch),
        found.known_revision,
        found.known_entries,
    )
}
