//! `damper rollback`: restores a rule, a guard or everything to an earlier revision, in a new revision.
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
          required_unless_present = "all", conflicts_with = "all")]
    key: Vec<String>,
    /// The guard with this key instead of the rule
    #[arg(long, conflicts_with = "all")]
    guard: bool,
    /// All rules and guards; with a --reason
    #[arg(long)]
    all: bool,
    /// Restored revision; 0 is before the first change
    #[arg(long, value_name = "REV")]
    to: u64,
    /// Only if the rule or guard, or with --all the server, is at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Rolls back.
pub(crate) async fn run(session: &Session, args: RollbackArgs) -> Result<(), CliError> {
    let key = key::pattern_of(&args.key)?;
    if key.is_none() && args.write.reason.is_empty() {
        return Err(CliError::Usage("--all: needs a --reason".to_owned()));
    }
    let client = Client::connect(&session.server).await?;
    let mut history = client.history.clone();
    let (to_revision, expected_revision) = (Some(args.to), args.expected_revision);
    let options = Some(args.write.options());
    let response = match key {
        None => {
            let request = v1::RollbackAllRequest { to_revision, expected_revision, options };
            client.answer(history.rollback_all(request)).await?
        }
        Some(key) => {
            let kind = if args.guard { object_key::Kind::Guard(key) } else { object_key::Kind::Rule(key) };
            let key = Some(v1::ObjectKey { kind: Some(kind) });
            let request = v1::RollbackRequest { key, to_revision, expected_revision, options };
            client.answer(history.rollback(request)).await?
        }
    };
    report(session, &response, args.write.suffix())?;
    args.write.delivered(&client, written(&response)).await
}
