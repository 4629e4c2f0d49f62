//! `damper apply -f`: a set of rules, guards and queues, all or nothing, in one revision.
//!
//! A manifest with a `revision` (from `get` or `list`) is only written if the resource is still at that
//! revision, so that a concurrent change is not lost. With an owner the set covers all resources of the
//! owner; changes to resources of others are listed, and nothing is written.

use clap::Args;
use damper_proto::v1;
use damper_proto::v1::rule_result::Change;

use crate::error::{CliError, print_message};
use crate::input::key;
use crate::output::prediction as what_if;
use crate::output::{Align, Table, show};
use crate::remote::change_set::SetArgs;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Arguments of `damper apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Predict the effect on load and success: simulate the routes that had calls in the last minute;
    /// change nothing
    #[arg(long, conflicts_with_all = ["dry_run", "wait", "request_id"])]
    what_if: bool,
    /// With --prune: delete all jobs of the deleted queues too, also those that have not ended; requires the
    /// role operator
    #[arg(long, requires = "prune", conflicts_with = "what_if")]
    purge: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Applies the manifests.
pub(crate) async fn run(session: &Session, args: ApplyArgs) -> Result<(), CliError> {
    let set = args.set.read()?;
    let client = Client::connect(&session.server).await?;
    if args.what_if {
        let predicted = set.predict(&client, args.set.options(args.write.options())).await?;
        return what_if::report(session.format, &predicted);
    }
    let options = v1::WriteOptions { purge_jobs: args.purge, ..args.set.options(args.write.options()) };
    let response = set.send(&client, options).await?;
    report(session, &response, args.write.suffix())?;
    args.write.delivered(&client, written(&response)).await
}

/// Returns the revision of a write; `None` if it changed nothing.
pub(crate) fn written(response: &v1::ApplyRulesResponse) -> Option<u64> {
    let v1::ApplyRulesResponse { revision, created, updated, deleted, .. } = response;
    (created + updated + deleted > 0).then_some(*revision)
}

/// Prints the result of a set.
pub(crate) fn report(
    session: &Session,
    response: &v1::ApplyRulesResponse,
    suffix: &str,
) -> Result<(), CliError> {
    let results = &response.results;
    warn(&results.iter().flat_map(warnings_of).collect::<Vec<_>>());
    show(session.format, response, || table(results).to_string())?;
    print_message(summary(response, suffix));
    Ok(())
}

/// Returns the warnings of one change.
pub(crate) fn warnings_of(result: &v1::RuleResult) -> Vec<String> {
    let words = key::change_words(result.guard, result.key.as_ref(), &result.queue);
    warnings(&words, result.reach.as_ref(), &result.findings)
}

fn table(results: &[v1::RuleResult]) -> Table {
    use Align::{Left, Right};
    let has_queues = results.iter().any(|result| !result.queue.is_empty());
    let mut columns = vec![
        ("CHANGE", Left),
        ("KIND", Left),
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
    ];
    columns.extend(has_queues.then_some(("QUEUE", Left)));
    columns.extend([("ROUTES", Right), ("CLIENTS", Right)]);
    let mut table = Table::new(&columns);
    for result in results {
        let kind = match (result.queue.as_str(), result.guard) {
            ("", false) => "rule",
            ("", true) => "guard",
            _ => "queue",
        };
        let change = [change_name(result.change()).to_owned(), kind.to_owned()];
        // Queues are not sent to clients.
        let count = |of: fn(&v1::RuleReach) -> u32| match &result.reach {
            None if kind == "queue" => String::new(),
            reach => reach.as_ref().map_or(0, of).to_string(),
        };
        let counts = [count(|reach| reach.routes), count(|reach| reach.clients)];
        let names = key::columns(result.key.as_ref()).into_iter();
        let queue = has_queues.then(|| result.queue.clone());
        table.row(change.into_iter().chain(names).chain(queue).chain(counts));
    }
    table
}

fn change_name(change: Change) -> &'static str {
    match change {
        Change::Unspecified => "",
        Change::Created => "created",
        Change::Updated => "updated",
        Change::Unchanged => "unchanged",
        Change::Deleted => "deleted",
    }
}

fn summary(response: &v1::ApplyRulesResponse, suffix: &str) -> String {
    let v1::ApplyRulesResponse { revision, created, updated, unchanged, deleted, results } = response;
    let all = [created, updated, unchanged, deleted].into_iter().map(|count| *count as usize).sum::<usize>();
    let gone = if *deleted > 0 { format!(", {deleted} deleted") } else { String::new() };
    let shown = match all.checked_sub(results.len()) {
        None | Some(0) => String::new(),
        Some(rest) => format!("; {rest} more not listed"),
    };
    format!(
        "revision {revision}: {created} created, {updated} updated, {unchanged} unchanged{gone}{shown}{suffix}"
    )
}
