//! `damper rollback`: restores a rule, a guard, a queue or everything to an earlier revision, in a new
//! revision.
//!
//! There is no confirmation: `--dry-run` shows the effect, and another rollback undoes it.

use clap::Args;
use damper_proto::v1::{self, object_key};

use crate::commands::apply::{report, written};
use crate::error::CliError;
use crate::input::key;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::WriteArgs;

/// Arguments of `damper rollback`.
#[derive(Args, Debug)]
pub(crate) struct RollbackArgs {
    /// Rule with exactly this key
    #[arg(num_args = 4, value_names = ["CALLER", "CLUSTER", "CALLEE", "METHOD"],
          required_unless_present_any = ["all", "queue"], conflicts_with_all = ["all", "queue"])]
    key: Vec<String>,
    /// Roll back a guard: the four values are the key of a guard, not of a rule
    #[arg(long, conflicts_with_all = ["all", "queue"])]
    guard: bool,
    /// Roll back the queue with this name
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    queue: Option<String>,
    /// Roll back all rules, guards and queue settings, but not jobs, kill switches or tokens; requires
    /// --reason
    #[arg(long)]
    all: bool,
    /// Revision whose state is restored; 0 is the empty state before the first change
    #[arg(long, value_name = "REV")]
    to: u64,
    /// Roll back only if the rule, guard or queue (with --all: the store) is still at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Rolls back.
pub(crate) async fn run(session: &Session, args: RollbackArgs) -> Result<(), CliError> {
    let key = key::pattern_of(&args.key)?;
    let kind = match (key, args.queue) {
        (_, Some(name)) => Some(object_key::Kind::Queue(name)),
        (Some(key), None) if args.guard => Some(object_key::Kind::Guard(key)),
        (key, None) => key.map(object_key::Kind::Rule),
    };
    if kind.is_none() && args.write.reason.is_empty() {
        return Err(CliError::Usage("--all: needs a --reason".to_owned()));
    }
    let client = Client::connect(&session.server).await?;
    let mut history = client.history.clone();
    let (to_revision, expected_revision) = (Some(args.to), args.expected_revision);
    let options = Some(args.write.options());
    let response = match kind {
        None => {
            let request = v1::RollbackAllRequest { to_revision, expected_revision, options };
            client.answer(history.rollback_all(request)).await?
        }
        Some(kind) => {
            let key = Some(v1::ObjectKey { kind: Some(kind) });
            let request = v1::RollbackRequest { key, to_revision, expected_revision, options };
            client.answer(history.rollback(request)).await?
        }
    };
    report(session, &response, args.write.suffix())?;
    args.write.delivered(&client, written(&response)).await
}
