//! `damper rules get KEY`

use clap::Args;

use crate::error::CliError;
use crate::input::key::Key;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper rules get`.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    key: Key,
}

/// Prints the rule with exactly this key.
pub(crate) async fn run(session: &Session, args: GetArgs) -> Result<(), CliError> {
    let key = args.key.pattern()?;
    let rule = Client::connect(&session.server).await?.rule(key).await?;
    super::show(session.format, &[rule])
}
