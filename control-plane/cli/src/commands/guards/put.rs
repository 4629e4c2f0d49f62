//! `damper guards put -f`: one guard, created or replaced.
//!
//! The owner of the callee decides: rules that the guard cuts do not prevent the write. They are listed as
//! warnings, and `explain` shows the result.

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::input::manifests::{self as sources, FileArgs, ManifestItem};
use crate::output::show;
use crate::remote::change_set::expected;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Arguments of `damper guards put`.
#[derive(Args, Debug)]
#[command(after_help = "The manifest:\n  \
    kind: Guard\n  \
    key: { caller_service: \"*\", caller_cluster: \"*\", callee_service: inventory, callee_method: \"*\" }\n  \
    ceiling: { max_attempts: 3, hedge: forbid, codes: { allow: [UNAVAILABLE] },\n             \
    max_retry_breaker_ratio: 0.2, min_per_attempt_timeout: 50ms,\n             \
    repeat_limit: { mode: observe, ratio: 0.1 } }\n  \
    owner: team-inventory\n\n\
    A ceiling limits only the settings that it contains. A manifest with a revision is only written if the \
    guard is still at that revision.")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Write only if the stored guard is at this revision; 0 = only if no such guard is stored
    #[arg(long, value_name = "N", conflicts_with = "overwrite")]
    expected_revision: Option<u64>,
    /// Write the guard even if the stored one was changed after the revision in the manifest
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Writes the guard.
pub(crate) async fn run(session: &Session, args: PutArgs) -> Result<(), CliError> {
    let manifests = sources::read(&args.file)?;
    let guard = sources::only(&manifests, "guard", ManifestItem::guard)?;
    let client = Client::connect(&session.server).await?;
    let request = v1::PutGuardRequest {
        guard: Some(guard.clone()),
        expected_revision: args.expected_revision.or_else(|| expected(guard.revision, args.overwrite)),
        options: Some(args.write.options()),
    };
    let mut call = client.guards.clone();
    let locate = |field: &str| sources::locate(&manifests, field);
    let response = client.answer_in(call.put_guard(request), &locate).await?;
    let words = ManifestItem::Guard(guard.clone()).words();
    warn(&warnings(&words, response.reach.as_ref(), &response.findings));
    let done = if response.changed { "put" } else { "unchanged" };
    show(session.format, &response, || format!("{words} {done}\n"))?;
    print_message(format_args!("revision {}{}", response.revision, args.write.suffix()));
    // An unchanged guard was delivered before.
    args.write.delivered(&client, response.guard.map(|guard| guard.revision)).await
}
