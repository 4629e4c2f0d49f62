//! `damper apply -f`: a set of rules, all or nothing, in one revision.
//!
//! A manifest that names a `revision` (one that was read with `rules get` or `rules list`) is only written
//! where the rule is still at that revision, so that a change made in between is not lost.

use clap::Args;
use damper_proto::v1;
use damper_proto::v1::apply_rules_request::Kind;
use damper_proto::v1::rule_result::Change;

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::key;
use crate::output::{Align, Table, message, show};
use crate::sources::{self, FileArgs, Manifest};
use crate::write::{WriteArgs, warn};

/// Arguments of `damper apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Write also where a rule has changed since the revision that its manifest names
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
    let results = &response.results;
    warn(results.iter().filter_map(|result| Some((key::words(result.key.as_ref()), result.reach.as_ref()?))));
    show(session.format, &response, || table(results).to_string())?;
    message(summary(&response, manifests.len(), args.write.suffix()));
    Ok(())
}

/// The header and one change per manifest.
fn requests(manifests: &[Manifest], args: &ApplyArgs) -> Vec<v1::ApplyRulesRequest> {
    let header = Kind::Header(args.write.options());
    let changes = manifests.iter().map(|Manifest { rule, .. }| {
        Kind::Change(v1::RuleChange {
            kind: Some(v1::rule_change::Kind::Put(rule.clone())),
            expected_revision: expected(rule, args.overwrite),
        })
    });
    [header].into_iter().chain(changes).map(|kind| v1::ApplyRulesRequest { kind: Some(kind) }).collect()
}

/// The revision that the rule must be at, where the manifest names one.
pub(crate) fn expected(rule: &v1::Rule, overwrite: bool) -> Option<u64> {
    (rule.revision > 0 && !overwrite).then_some(rule.revision)
}

fn table(results: &[v1::RuleResult]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CHANGE", Left),
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("ROUTES", Right),
        ("CLIENTS", Right),
    ]);
    for result in results {
        let reach = result.reach.clone().unwrap_or_default();
        let change = [change_name(result.change()).to_owned()];
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

fn summary(response: &v1::ApplyRulesResponse, sent: usize, suffix: &str) -> String {
    let v1::ApplyRulesResponse { revision, created, updated, unchanged, deleted: _, results } = response;
    let shown = match sent.checked_sub(results.len()) {
        None | Some(0) => String::new(),
        Some(rest) => format!("; {rest} more are not listed"),
    };
    format!("revision {revision}: {created} created, {updated} updated, {unchanged} unchanged{shown}{suffix}")
}
