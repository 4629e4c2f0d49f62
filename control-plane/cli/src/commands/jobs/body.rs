//! `damper jobs body JOB --reason TEXT`: the bytes of the body, or with `-o` the message with its metadata.

use std::io::{self, Write as _};

use clap::Args;
use damper_proto::v1;

use crate::error::CliError;
use crate::output::{Format, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper jobs body`.
#[derive(Args, Debug)]
pub(crate) struct BodyArgs {
    /// Id of the job
    job: String,
    /// Reason for reading the body of the job, recorded in the server's log
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Writes the body.
pub(crate) async fn run(session: &Session, args: BodyArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let request = v1::ReadBodyRequest { job_id: args.job, reason: args.reason };
    let read = client.answer(client.queues.clone().read_body(request)).await?;
    match session.format {
        Format::Table => {
            let mut out = io::stdout().lock();
            let written = out.write_all(&read.body).and_then(|()| out.flush());
            written.map_err(CliError::io("standard output"))
        }
        format => show(format, &read, String::new),
    }
}
