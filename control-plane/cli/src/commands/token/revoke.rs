//! `damper token revoke`.

use clap::Args;
use damper_proto::v1;

use super::ChangeArgs;
use crate::error::{CliError, print_message};
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper token revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// Id of the token: the middle part of damper_ID_SECRET, and the first column of `damper token list`
    id: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Revokes a token.
pub(crate) async fn run(session: &Session, RevokeArgs { id, change }: RevokeArgs) -> Result<(), CliError> {
    if let Some(rest) = id.strip_prefix("damper_") {
        return Err(CliError::Usage(whole_token(rest)));
    }
    let request = v1::RevokeTokenRequest { id: id.clone(), options: Some(change.options()) };
    let client = Client::connect(&session.server).await?;
    // Read before: afterwards the token may be invalid.
    let who = client.answer(client.tokens.clone().who_am_i(v1::WhoAmIRequest {})).await;
    let is_own = who.is_ok_and(|who| who.principal.ends_with(&format!("({id})")));
    let response = client.answer(client.tokens.clone().revoke_token(request)).await?;
    show(session.format, &response, || format!("revoked: {}\n", printable(&id)))?;
    let suffix = if change.dry_run { " (dry run: nothing was changed)" } else { "" };
    print_message(format_args!("revision {}{suffix}", response.revision));
    if is_own && !change.dry_run {
        print_message("warning: this command uses the revoked token; it is no longer valid");
    }
    Ok(())
}

/// Error for a token in place of an id: does not repeat the secret, which the shell's history already has.
fn whole_token(rest: &str) -> String {
    const WHY: &str = "ID: the id is required, not the token";
    const ID_DIGITS: usize = 16;
    match rest.split_once('_') {
        Some((id, _)) if id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{WHY}: damper token revoke {id}")
        }
        _ => {
            format!("{WHY}: the {ID_DIGITS} digits between the underscores, see damper token list")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_in_place_of_an_id_is_not_repeated() {
        let secret = "ab".repeat(32);
        let told = whole_token(&format!("0123456789abcdef_{secret}"));
        assert!(told.ends_with("damper token revoke 0123456789abcdef"), "{told}");
        for odd in [secret.clone(), format!("{secret}_x"), format!("012_{secret}"), String::new()] {
            let told = whole_token(&odd);
            assert!(told.contains("damper token list") && !told.contains("abab"), "{told}");
        }
    }
}
