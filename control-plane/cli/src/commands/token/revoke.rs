//! `damper token revoke`.

use clap::Args;
use damper_proto::v1;

use super::ChangeArgs;
use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::output::{message, printable, show};

/// Arguments of `damper token revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// The token's id: the middle part of damper_ID_SECRET, and the first column of `damper token list`
    id: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Ends a token.
pub(crate) async fn run(session: &Session, RevokeArgs { id, change }: RevokeArgs) -> Result<(), Error> {
    // Who pastes the whole token means its id; the rest must not go on to a log.
    let id = match id.strip_prefix("damper_").and_then(|rest| rest.split_once('_')) {
        Some((id, _)) => id.to_owned(),
        None => id,
    };
    let request = v1::RevokeTokenRequest { id: id.clone(), options: Some(change.options()) };
    let client = Client::connect(&session.server).await?;
    let response = client.answer(client.tokens.clone().revoke_token(request)).await?;
    show(session.format, &response, || format!("revoked: {}\n", printable(&id)))?;
    let suffix = if change.dry_run { " (dry run: nothing was changed)" } else { "" };
    message(format_args!("revision {}{suffix}", response.revision));
    Ok(())
}
