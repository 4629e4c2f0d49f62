//! `damper guards list`

use clap::Args;

use crate::error::CliError;
use crate::input::filter::NameArgs;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper guards list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    filter: NameArgs,
}

/// Prints the guards that match the filter.
pub(crate) async fn run(session: &Session, args: ListArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let all = client.all_guards(&args.filter.filter()).await?;
    super::show(session.format, &all.guards)
}
