//! `damper apply -f`: a set of rules and guards, all or nothing, in one revision.
//!
//! A manifest that names a `revision` (one that was read with `get` or `list`) is only written where the
//! rule or guard is still at that revision, so that a change made in between is not lost.

use clap::Args;
use damper_proto::v1::apply_rules_request::Kind;
use damper_proto::v1::rule_result::Change;
use damper_proto::v1::{self, rule_change};

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::key;
use crate::output::{Align, Table, message, show};
use crate::sources::{self, FileArgs, Item, Manifest};
use crate::write::{WriteArgs, warn, warnings};

/// Arguments of `damper apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Write also where a rule or guard has changed since the revision that its manifest names
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Applies the manifests.
pub(crate) async fn run(session: &Session, args: ApplyArgs) -> Result<(), Error> {
    let manifests = sources::read(&args.files)?;
    let client = Client::connect(&session.server).await?;
    let requests = requests(&manifests, &args);
    let locate = |field: &str| sources::locate(&manifests, field);
    // Without a limit of our own: a large set takes its time, and a server that died is found out by its pings.
    let call = client.rules.clone().apply_rules(futures_util::stream::iter(requests)).await;
    let response = call.map_err(|status| client.failure_in(&status, &locate))?.into_inner();
    report(session, &response, args.write.suffix())
}

/// Shows what became of a set of changes.
pub(crate) fn report(
    session: &Session,
    response: &v1::ApplyRulesResponse,
    suffix: &str,
) -> Result<(), Error> {
    let results = &response.results;
    warn(&results.iter().flat_map(warnings_of).collect::<Vec<_>>());
    show(session.format, response, || table(results).to_string())?;
    message(summary(response, suffix));
    Ok(())
}

/// The header and one change per manifest.
fn requests(manifests: &[Manifest], args: &ApplyArgs) -> Vec<v1::ApplyRulesRequest> {
    let header = Kind::Header(args.write.options());
    let changes = manifests.iter().map(|Manifest { item, .. }| {
        let kind = match item.clone() {
            Item::Rule(rule) => rule_change::Kind::Put(rule),
            Item::Guard(guard) => rule_change::Kind::PutGuard(guard),
        };
        let expected_revision = expected(item, args.overwrite);
        Kind::Change(v1::RuleChange { kind: Some(kind), expected_revision })
    });
    [header].into_iter().chain(changes).map(|kind| v1::ApplyRulesRequest { kind: Some(kind) }).collect()
}

/// The revision that the rule or guard must be at, where the manifest names one.
pub(crate) fn expected(item: &Item, overwrite: bool) -> Option<u64> {
    Some(item.revision()).filter(|revision| *revision > 0 && !overwrite)
}

fn warnings_of(result: &v1::RuleResult) -> Vec<String> {
    let kind = if result.guard { "guard " } else { "" };
    let words = format!("{kind}{}", key::words(result.key.as_ref()));
    warnings(&words, result.reach.as_ref(), &result.findings)
}

fn table(results: &[v1::RuleResult]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CHANGE", Left),
        ("KIND", Left),
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("ROUTES", Right),
        ("CLIENTS", Right),
    ]);
    for result in results {
        let reach = result.reach.clone().unwrap_or_default();
        let kind = if result.guard { "guard" } else { "rule" };
        let change = [change_name(result.change()).to_owned(), kind.to_owned()];
        let counts = [reach.routes.to_string(), reach.clients.to_string()];
        table.row(change.into_iter().chain(key::columns(result.key.as_ref())).chain(counts));
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
        Some(rest) => format!("; {rest} more are not listed"),
    };
    format!(
        "revision {revision}: {created} created, {updated} updated, {unchanged} unchanged{gone}{shown}{suffix}"
    )
}
