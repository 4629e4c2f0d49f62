//! `damper import -f`: everything as an export has it, in one revision.
//!
//! The manifests are the whole: what they do not name is removed, owners are as they say. Into a store that has
//! something this needs `--replace`. Rules that a guard is against are taken as they are, as they were when they
//! were exported; the guard cuts them.

use clap::Args;
use damper_proto::v1;

use crate::Session;
use crate::client::Client;
use crate::commands::apply::{report, written};
use crate::exit::Error;
use crate::set::Set;
use crate::sources::{self, FileArgs};
use crate::write::WriteArgs;

/// Arguments of `damper import`.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Also where there are rules or guards already: those that are not in the manifests are removed
    #[arg(long)]
    replace: bool,
    /// There may be no manifest at all
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Imports.
pub(crate) async fn run(session: &Session, args: ImportArgs) -> Result<(), Error> {
    if args.write.reason.is_empty() {
        return Err(Error::Usage("import: needs a --reason".to_owned()));
    }
    let set = Set::whatever(sources::read_set(&args.files, args.allow_empty)?);
    let client = Client::connect(&session.server).await?;
    if !args.replace {
        refuse_unless_empty(&client).await?;
    }
    let options = v1::WriteOptions {
        take_over: args.replace,
        prune: v1::Prune::Everything.into(),
        force: true,
        ..args.write.options()
    };
    let response = set.send(&client, options).await?;
    report(session, &response, args.write.suffix())?;
    args.write.delivered(&client, written(&response)).await
}

async fn refuse_unless_empty(client: &Client) -> Result<(), Error> {
    let rules = v1::ListRulesRequest { page_size: 1, ..Default::default() };
    let rules = client.answer(client.rules.clone().list_rules(rules)).await?.total;
    let guards = v1::ListGuardsRequest { page_size: 1, ..Default::default() };
    let guards = client.answer(client.guards.clone().list_guards(guards)).await?.total;
    if rules + guards == 0 {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "there are {rules} rules and {guards} guards; an import makes the manifests all there is: say --replace"
    )))
}
