//! `damper rules list`

use clap::Args;

use crate::commands::kills;
use crate::error::CliError;
use crate::input::filter::FilterArgs;
use crate::output::Format;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper rules list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
}

/// Prints the rules that match the filter.
pub(crate) async fn run(session: &Session, args: ListArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let all = client.all_rules(&args.filter.filter()).await?;
    super::show(session.format, &all.rules)?;
    if session.format == Format::Table {
        kills::warn_kills_in_force(&client).await;
    }
    Ok(())
}
