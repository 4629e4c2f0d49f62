//! `damper queues list`

use clap::Args;

use crate::error::CliError;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper queues list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// List only queues whose name or owner contains this text
    #[arg(long, default_value = "", hide_default_value = true)]
    text: String,
}

/// Prints the queues that match the filter.
pub(crate) async fn run(session: &Session, args: ListArgs) -> Result<(), CliError> {
    let queues = Client::connect(&session.server).await?.all_queues(&args.text).await?;
    super::show(session.format, &queues)
}
