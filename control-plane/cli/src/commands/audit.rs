//! `damper audit export`: the record of all changes as JSON lines, oldest first.

use clap::{Args, Subcommand};
use damper_proto::v1;

use crate::error::CliError;
use crate::output::changes::ChangesArgs;
use crate::output::data;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Commands of the audit log.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Print a line of JSON for each changed resource, oldest first
    Export(ExportArgs),
}

/// Arguments of `damper audit export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    changes: ChangesArgs,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, command: AuditCommand) -> Result<(), CliError> {
    let AuditCommand::Export(args) = command;
    let request = v1::ExportAuditRequest { filter: Some(args.changes.filter()?) };
    let client = Client::connect(&session.server).await?;
    let mut changes = client.answer(client.history.clone().export_audit(request)).await?;
    while let Some(change) = changes.message().await.map_err(|status| client.failure(&status))? {
        let line = serde_json::to_string(&change)
            .map_err(|error| CliError::Defect(format!("a change cannot be printed as JSON: {error}")))?;
        data(&(line + "\n"))?;
    }
    Ok(())
}
