//! `damper diff -f`: what `apply` would change, and nothing else.
//!
//! Ends with 0 where nothing differs, 1 where something does, 2 with any error.

use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::Session;
use crate::client::Client;
use crate::difference::{Difference, show};
use crate::exit::Error;
use crate::sources::{self, FileArgs, Item, Manifest};

/// So many rules and guards are asked for at a time.
const AT_A_TIME: usize = 32;

/// Arguments of `damper diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    files: FileArgs,
}

/// Shows the differences.
pub(crate) async fn run(session: &Session, args: DiffArgs) -> Result<(), Error> {
    show(session.format, differences(session, args).await)
}

async fn differences(session: &Session, args: DiffArgs) -> Result<Vec<Difference>, Error> {
    let manifests = sources::read(&args.files)?;
    let client = Client::connect(&session.server).await?;
    let compared = futures_util::stream::iter(manifests).map(|manifest| compare(&client, manifest));
    let compared: Vec<Option<Difference>> = compared.buffered(AT_A_TIME).try_collect().await?;
    Ok(compared.into_iter().flatten().collect())
}

async fn compare(client: &Client, Manifest { origin, item }: Manifest) -> Result<Option<Difference>, Error> {
    let key = item.key().cloned().unwrap_or_default();
    let there = match &item {
        Item::Rule(_) => client.rule(key.clone()).await.map(Item::Rule),
        Item::Guard(_) => client.guard(key.clone()).await.map(Item::Guard),
    };
    let there = match there {
        Ok(there) => Some(there),
        Err(Error::Missing(_)) => None,
        Err(error) => return Err(error),
    };
    Difference::between(there.as_ref(), Some(&item), Some(origin.to_string()))
}
