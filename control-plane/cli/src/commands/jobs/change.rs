//! `damper jobs run|cancel|replay|purge QUEUE [JOB...]`: changes the jobs of a selection.
//!
//! A request changes as many jobs as its time allows; the command repeats it for the rest.

use clap::Args;
use damper_proto::v1;

use super::filter::FilterArgs;
use crate::error::{CliError, print_message};
use crate::output::figures::many;
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::author_or_user;

/// Arguments of the commands that change jobs.
#[derive(Args, Debug)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only these jobs [default: all that the other options select]
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// Count the jobs, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Reason of the change, recorded in the server's log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Author of the change, recorded in the history [default: the system's user@host]
    #[arg(long, value_name = "NAME", env = "DAMPER_AUTHOR", hide_env_values = true)]
    author: Option<String>,
}

/// Arguments of `damper jobs replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Maximum rate at which the selected jobs are delivered, 0.1 to 10000 per second [default: 10]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Makes waiting jobs due now.
pub(crate) async fn run(session: &Session, args: ChangeArgs) -> Result<(), CliError> {
    change(session, args, v1::JobChange::Run, None, "due now").await
}

/// Ends waiting jobs.
pub(crate) async fn cancel(session: &Session, args: ChangeArgs) -> Result<(), CliError> {
    change(session, args, v1::JobChange::Cancel, None, "cancelled").await
}

/// Makes dead jobs wait again.
pub(crate) async fn replay(session: &Session, args: ReplayArgs) -> Result<(), CliError> {
    change(session, args.change, v1::JobChange::Replay, args.rate, "replayed").await
}

/// Deletes dead and ended jobs.
pub(crate) async fn purge(session: &Session, args: ChangeArgs) -> Result<(), CliError> {
    change(session, args, v1::JobChange::Purge, None, "deleted").await
}

async fn change(
    session: &Session,
    args: ChangeArgs,
    change: v1::JobChange,
    rate: Option<f64>,
    done: &str,
) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let filter = args.filter.wire(&args.jobs)?;
    let options = v1::WriteOptions {
        validate_only: args.dry_run,
        reason: args.reason,
        author: author_or_user(args.author),
        ..v1::WriteOptions::default()
    };
    let mut all = v1::ChangeJobsResponse::default();
    loop {
        let request = v1::ChangeJobsRequest {
            filter: Some(filter.clone()),
            change: change.into(),
            rate,
            options: Some(options.clone()),
            done: if change == v1::JobChange::Replay { all.jobs } else { 0 },
        };
        let part = client.answer(client.queues.clone().change_jobs(request)).await?;
        all.jobs += part.jobs;
        all.skipped += part.skipped;
        if !part.more {
            break;
        }
        if args.dry_run {
            print_message(format_args!(
                "counted {} jobs in the time of a request; there are more",
                part.jobs
            ));
            break;
        }
        print_message(format_args!("{} jobs {done} so far", all.jobs));
    }
    let jobs = usize::try_from(all.jobs).unwrap_or(usize::MAX);
    show(session.format, &all, || {
        format!("{} of queue {} {done}\n", many(jobs, "job"), printable(&filter.queue))
    })?;
    if all.skipped > 0 {
        print_message(format_args!("{} skipped: in a state that this does not apply to", all.skipped));
    }
    if args.dry_run {
        print_message("dry run: nothing was changed");
    }
    Ok(())
}
