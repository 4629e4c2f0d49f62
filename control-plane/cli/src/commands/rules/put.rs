//! `damper rules put -f`: one rule, created or replaced.
//!
//! The manifest is the same as for `apply`; its key says which rule. Where several rules belong together
//! `apply` writes them in one revision.

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
    A manifest that names a revision is only written where the rule is still at that revision.")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Only where the rule is at this revision; 0 = only where there is none yet
    #[arg(long, value_name = "N", conflicts_with = "overwrite")]
    expected_revision: Option<u64>,
    /// Write also where the rule has changed since the revision that the manifest names
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

/// Shows what was written and whom it concerns, and waits for it where that is wanted.
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
    // One that was so already came with the change that made it so.
    write.delivered(client, response.rule.as_ref().map(|rule| rule.revision)).await
}
