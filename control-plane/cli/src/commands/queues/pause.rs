//! `damper queues pause NAME` and `resume NAME`: stop and start the deliveries of a queue.
//!
//! Only the setting `paused` changes. The queue is written at the revision at which it was read, so a
//! concurrent change is a conflict.

use clap::Args;
use damper_proto::v1;

use crate::error::CliError;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::WriteArgs;

/// Arguments of `damper queues pause` and `damper queues resume`.
#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    /// Name of the queue
    name: String,
    /// Change the queue only if it is still at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Stops deliveries, for the reason of the change.
pub(crate) async fn pause(session: &Session, args: PauseArgs) -> Result<(), CliError> {
    if args.write.reason.is_empty() {
        return Err(CliError::Usage("pause: needs a --reason".to_owned()));
    }
    let reason = args.write.reason.clone();
    set(session, args, reason, "paused").await
}

/// Starts deliveries again.
pub(crate) async fn resume(session: &Session, args: PauseArgs) -> Result<(), CliError> {
    set(session, args, String::new(), "resumed").await
}

async fn set(session: &Session, args: PauseArgs, paused: String, done: &str) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let queue = client.queue(&args.name).await?;
    let request = v1::PutQueueRequest {
        expected_revision: Some(args.expected_revision.unwrap_or(queue.revision)),
        queue: Some(v1::Queue { paused, ..queue }),
        options: Some(args.write.options()),
    };
    let response = client.answer(client.queues.clone().put_queue(request)).await?;
    super::finish(session, &client, &args.write, &response, done).await
}
