//! `damper rules delete KEY`

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::input::key::{self, Key};
use crate::output::amplification as amplified;
use crate::output::show;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Arguments of `damper rules delete`.
#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    key: Key,
    /// Delete the rule only if it is still at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Deletes the rule with exactly this key.
pub(crate) async fn run(session: &Session, args: DeleteArgs) -> Result<(), CliError> {
    let key = args.key.pattern()?;
    let words = key::words(Some(&key));
    let client = Client::connect(&session.server).await?;
    let request = v1::DeleteRuleRequest {
        key: Some(key),
        expected_revision: args.expected_revision,
        options: Some(args.write.options()),
    };
    let response = client.answer(client.rules.clone().delete_rule(request)).await?;
    warn(&warnings(&words, None, &response.findings));
    amplified::tell(response.before.as_ref(), response.after.as_ref());
    show(session.format, &response, || format!("{words} deleted\n"))?;
    print_message(format_args!("revision {}{}", response.revision, args.write.suffix()));
    args.write.delivered(&client, Some(response.revision)).await
}
