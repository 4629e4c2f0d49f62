//! `damper rules put -f`: one rule, created or replaced.
//!
//! The manifest is that of `apply`, with the key of the rule. Use `apply` to write several rules in one
//! revision.

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::input::key;
use crate::input::manifests::{self as sources, FileArgs, ManifestItem};
use crate::output::amplification as amplified;
use crate::output::show;
use crate::remote::change_set::expected;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Arguments of `damper rules put`.
#[derive(Args, Debug)]
#[command(after_help = "The manifest:\n  \
    kind: Rule\n  \
    key: { caller_service: checkout, caller_cluster: \"*\", callee_service: inventory,\n         \
    callee_method: inventory.v1.Inventory/Reserve }\n  \
    policy: { mode: observe, retry: { max_attempts: 3 } }\n\n\
    A manifest with a revision is only written if the rule is still at that revision.")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Write only if the stored rule is at this revision; 0 = only if no such rule is stored
    #[arg(long, value_name = "N", conflicts_with = "overwrite")]
    expected_revision: Option<u64>,
    /// Write the rule even if the stored one was changed after the revision in the manifest
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Writes the rule.
pub(crate) async fn run(session: &Session, args: PutArgs) -> Result<(), CliError> {
    let manifests = sources::read(&args.file)?;
    let rule = sources::only(&manifests, "rule", ManifestItem::rule)?;
    let client = Client::connect(&session.server).await?;
    let request = v1::PutRuleRequest {
        rule: Some(rule.clone()),
        expected_revision: args.expected_revision.or_else(|| expected(rule.revision, args.overwrite)),
        options: Some(args.write.options()),
    };
    let mut call = client.rules.clone();
    let locate = |field: &str| sources::locate(&manifests, field);
    let response = client.answer_in(call.put_rule(request), &locate).await?;
    finish(session, &client, &args.write, &response, "put").await
}

/// Prints the result and the warnings, and waits for delivery if requested.
pub(super) async fn finish(
    session: &Session,
    client: &Client,
    write: &WriteArgs,
    response: &v1::PutRuleResponse,
    done: &str,
) -> Result<(), CliError> {
    let key = key::words(response.rule.as_ref().and_then(|rule| rule.key.as_ref()));
    warn(&warnings(&key, response.reach.as_ref(), &response.findings));
    amplified::tell(response.before.as_ref(), response.after.as_ref());
    let done = if response.changed { done } else { "unchanged" };
    let revision = response.revision;
    show(session.format, response, || format!("{key} {done}\n"))?;
    print_message(format_args!("revision {revision}{}", write.suffix()));
    // An unchanged rule was delivered before.
    write.delivered(client, response.rule.as_ref().map(|rule| rule.revision)).await
}
