//! `damper diff -f`: the changes that `apply` would make.
//!
//! The differences are computed here, setting by setting; the server validates the set without writing. A
//! diff that ends with 0 or 1 is one that `apply` would accept, without concurrent changes.
//!
//! Ends with 0 without differences, 1 with differences, 2 with any error, including a rejected set.

use std::collections::HashSet;

use clap::Args;
use damper_proto::v1;
use damper_proto::v1::rule_result::Change;
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::commands::apply::warnings_of;
use crate::error::CliError;
use crate::input::manifests::{Manifest, ManifestItem};
use crate::output::difference::{Difference, show};
use crate::remote::change_set::SetArgs;
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::warn;

/// Comparisons at the same time.
const AT_A_TIME: usize = 32;

/// Arguments of `damper diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    set: SetArgs,
}

/// Prints the differences.
pub(crate) async fn run(session: &Session, DiffArgs { set: args }: DiffArgs) -> Result<(), CliError> {
    let of_diff = |error| CliError::OfDiff(Box::new(error));
    let set = args.read().map_err(of_diff)?;
    let client = Client::connect(&session.server).await.map_err(of_diff)?;
    let options = args.options(v1::WriteOptions { validate_only: true, ..Default::default() });
    let checked = set.send(&client, options).await;
    if let Err(denied @ CliError::Denied(_)) = checked {
        // A set that the server rejects is an error, not a difference.
        return Err(of_diff(denied));
    }
    let shown = show(session.format, differences(&client, &args, set.manifests).await);
    match checked {
        Ok(response) => {
            let changed = response.results.iter().filter(|result| result.change() != Change::Unchanged);
            warn(&changed.flat_map(warnings_of).collect::<Vec<_>>());
            shown
        }
        Err(refused) => Err(of_diff(refused)),
    }
}

async fn differences(
    client: &Client,
    args: &SetArgs,
    manifests: Vec<Manifest>,
) -> Result<Vec<Difference>, CliError> {
    let deleted = if args.prune { deleted(client, args, &manifests).await? } else { Vec::new() };
    let compared = futures_util::stream::iter(manifests).map(|manifest| compare(client, args, manifest));
    let compared: Vec<Option<Difference>> = compared.buffered(AT_A_TIME).try_collect().await?;
    Ok(compared.into_iter().flatten().chain(deleted).collect())
}

async fn compare(
    client: &Client,
    args: &SetArgs,
    Manifest { origin, item }: Manifest,
) -> Result<Option<Difference>, CliError> {
    let there = match &item {
        ManifestItem::Rule(rule) => {
            client.rule(rule.key.clone().unwrap_or_default()).await.map(ManifestItem::Rule)
        }
        ManifestItem::Guard(guard) => {
            client.guard(guard.key.clone().unwrap_or_default()).await.map(ManifestItem::Guard)
        }
        ManifestItem::Queue(queue) => client.queue(&queue.name).await.map(ManifestItem::Queue),
    };
    let there = match there {
        Ok(there) => Some(there),
        Err(CliError::Missing(_)) => None,
        Err(error) => return Err(error),
    };
    let item = owned(item, there.as_ref(), args);
    Difference::between(there.as_ref(), Some(&item), Some(origin.to_string()))
}

/// Sets the owner that the item would get: its own, else that of the set; the resources of others keep
/// theirs.
fn owned(item: ManifestItem, there: Option<&ManifestItem>, args: &SetArgs) -> ManifestItem {
    let ours = args.owner.as_deref().unwrap_or_default();
    let theirs = there.map(ManifestItem::owner).filter(|owner| !owner.is_empty() && !args.take_over);
    if item.owner().is_empty() { item.owned_by(theirs.unwrap_or(ours)) } else { item }
}

/// Returns the resources that a prune would delete.
async fn deleted(
    client: &Client,
    args: &SetArgs,
    manifests: &[Manifest],
) -> Result<Vec<Difference>, CliError> {
    let named: HashSet<String> = manifests.iter().map(|manifest| manifest.item.words()).collect();
    let filter = v1::RuleFilter { owner: args.owner.clone(), ..Default::default() };
    let rules = client.all_rules(&filter).await?.rules.into_iter().map(ManifestItem::Rule);
    let guards = client.all_guards(&filter).await?.guards.into_iter().map(ManifestItem::Guard);
    let ours = args.owner.as_deref().unwrap_or_default();
    let queues = client.all_queues(ours).await?.into_iter();
    let queues = queues.filter(|queue| queue.owner == ours).map(ManifestItem::Queue);
    let gone = rules.chain(guards).chain(queues).filter(|item| !named.contains(&item.words()));
    let differences = gone.map(|item| Difference::between(Some(&item), None, None));
    differences.filter_map(Result::transpose).collect()
}
