//! `damper queues put -f`: one queue, created or replaced.

use clap::Args;
use damper_proto::v1;

use crate::error::CliError;
use crate::input::manifests::{self as sources, FileArgs, ManifestItem};
use crate::remote::change_set::expected;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::WriteArgs;

/// Arguments of `damper queues put`.
#[derive(Args, Debug)]
#[command(after_help = "The manifest:\n  \
    kind: Queue\n  \
    name: stock-later\n  \
    owner: team-orders\n  \
    policy: { mode: enforce, retry: { max_attempts: 20, per_attempt_timeout: 30s } }\n  \
    workers: [orders]\n\n\
    A change also applies to jobs that already wait. A manifest with a revision is only written if \
    the queue is still at that revision.")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Write only if the stored queue is at this revision; 0 = only if no such queue is stored
    #[arg(long, value_name = "N", conflicts_with = "overwrite")]
    expected_revision: Option<u64>,
    /// Write the queue even if the stored one was changed after the revision in the manifest
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Writes the queue.
pub(crate) async fn run(session: &Session, args: PutArgs) -> Result<(), CliError> {
    let manifests = sources::read(&args.file)?;
    let queue = sources::only(&manifests, "queue", ManifestItem::queue)?;
    let client = Client::connect(&session.server).await?;
    let request = v1::PutQueueRequest {
        queue: Some(queue.clone()),
        expected_revision: args.expected_revision.or_else(|| expected(queue.revision, args.overwrite)),
        options: Some(args.write.options()),
    };
    let mut call = client.queues.clone();
    let locate = |field: &str| sources::locate(&manifests, field);
    let response = client.answer_in(call.put_queue(request), &locate).await?;
    super::finish(session, &client, &args.write, &response, "put").await
}
