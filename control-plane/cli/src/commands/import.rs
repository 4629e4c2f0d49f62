//! `damper import -f`: restores an export in one revision.
//!
//! The manifests are complete: other resources are deleted, owners are those of the manifests. An import into
//! a store that is not empty needs `--replace`. Rules above the ceiling of a guard are accepted, as exported;
//! the guard cuts them.

use clap::Args;
use damper_proto::v1;

use crate::commands::apply::{report, written};
use crate::error::CliError;
use crate::input::manifests::{self as sources, FileArgs};
use crate::output::figures::many;
use crate::remote::change_set::Set;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::WriteArgs;

/// Arguments of `damper import`.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Import even if the server already has rules, guards or queues; those that are not in the manifests are
    /// deleted
    #[arg(long)]
    replace: bool,
    /// Allow an import without manifests; with --replace it deletes all rules, guards and queues of the
    /// server
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Imports.
pub(crate) async fn run(session: &Session, args: ImportArgs) -> Result<(), CliError> {
    if args.write.reason.is_empty() {
        return Err(CliError::Usage("import: needs a --reason".to_owned()));
    }
    let set = Set::whatever(sources::read_set(&args.files, args.allow_empty)?);
    let client = Client::connect(&session.server).await?;
    let empty_at = if args.replace { None } else { Some(empty_at(&client).await?) };
    let response = set.send(&client, args.options(empty_at)).await.map_err(with_advice)?;
    report(session, &response, args.write.suffix())?;
    args.write.delivered(&client, written(&response)).await
}

impl ImportArgs {
    /// Options of the write; `empty_at` is the revision at which the store was empty, if required.
    fn options(&self, empty_at: Option<u64>) -> v1::WriteOptions {
        v1::WriteOptions {
            take_over: self.replace,
            prune: v1::Prune::Everything.into(),
            expected_head: empty_at,
            ..self.write.options()
        }
    }
}

/// Adds the remedy if the amplification limit rejects an import.
fn with_advice(error: CliError) -> CliError {
    match error {
        CliError::Data(mut faults)
            if faults.iter().any(|fault| fault.contains("override it with `force`")) =>
        {
            faults
                .push("the amplification limit applies to an import; add --force to override it".to_owned());
            CliError::Data(faults)
        }
        error => error,
    }
}

/// Returns the revision without rules, guards and queues. The import is for that one, so that a concurrent
/// write is a conflict and is not deleted.
async fn empty_at(client: &Client) -> Result<u64, CliError> {
    let rules = v1::ListRulesRequest { page_size: 1, ..Default::default() };
    let v1::ListRulesResponse { revision, total: rules, .. } =
        client.answer(client.rules.clone().list_rules(rules)).await?;
    let guards = v1::ListGuardsRequest { page_size: 1, ..Default::default() };
    let guards = client.answer(client.guards.clone().list_guards(guards)).await?.total;
    let queues = v1::ListQueuesRequest { page_size: 1, ..Default::default() };
    let queues = client.answer(client.queues.clone().list_queues(queues)).await?.total;
    if rules + guards + queues == 0 {
        return Ok(revision);
    }
    Err(CliError::Conflict(format!(
        "the store contains {}, {} and {}; add --replace to replace them",
        many(rules as usize, "rule"),
        many(guards as usize, "guard"),
        many(queues as usize, "queue"),
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        import: ImportArgs,
    }

    fn options(more: &[&str]) -> v1::WriteOptions {
        let line = ["import", "-f", "all.yaml", "--reason", "restore"].iter().chain(more);
        Line::parse_from(line).import.options(Some(7))
    }

    #[test]
    fn import_forces_only_on_request() {
        assert!(!options(&[]).force);
        assert!(options(&["--force"]).force);
        assert_eq!(options(&[]).expected_head, Some(7));
    }

    #[test]
    fn amplification_refusal_suggests_force() {
        let limit = "policy: 27 sends; override it with `force` and a reason".to_owned();
        assert!(with_advice(CliError::Data(vec![limit])).to_string().ends_with("add --force to override it"));
        let other = "policy.mode: is required".to_owned();
        assert!(!with_advice(CliError::Data(vec![other])).to_string().contains("--force"));
    }
}
