//! `damper queues delete NAME`

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Arguments of `damper queues delete`.
#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// Name of the queue
    name: String,
    /// Delete the queue only if it is still at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    /// Also delete all jobs of the queue, whether they have ended or not, even if the queue itself is already
    /// deleted. Requires the role operator
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Deletes the queue. Errors while it has jobs that have not ended, unless they are purged.
pub(crate) async fn run(session: &Session, args: DeleteArgs) -> Result<(), CliError> {
    let words = format!("queue {}", printable(&args.name));
    let client = Client::connect(&session.server).await?;
    let request = v1::DeleteQueueRequest {
        name: args.name,
        expected_revision: args.expected_revision,
        options: Some(v1::WriteOptions { purge_jobs: args.purge, ..args.write.options() }),
    };
    let response = client.answer(client.queues.clone().delete_queue(request)).await?;
    warn(&warnings(&words, None, &response.findings));
    show(session.format, &response, || format!("{words} deleted\n"))?;
    print_message(format_args!("revision {}{}", response.revision, args.write.suffix()));
    args.write.delivered(&client, Some(response.revision)).await
}
