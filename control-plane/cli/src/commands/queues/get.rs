//! `damper queues get NAME`

use clap::Args;

use crate::error::CliError;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper queues get`.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// Name of the queue
    name: String,
}

/// Prints the queue with this name.
pub(crate) async fn run(session: &Session, args: GetArgs) -> Result<(), CliError> {
    let queue = Client::connect(&session.server).await?.queue(&args.name).await?;
    super::show(session.format, &[queue])
}
