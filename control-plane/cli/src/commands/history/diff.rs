//! `damper history diff REV [REV]`: settings that differ between two revisions.
//!
//! Kills have no settings: their changes are reported on stderr. Exit statuses are those of `damper diff`.

use clap::Args;
use damper_proto::v1::{self, object_key};

use super::PAGE;
use crate::error::{CliError, print_message};
use crate::input::filter::NameArgs;
use crate::input::key;
use crate::output::changes::item;
use crate::output::difference::{Difference, show};
use crate::output::printable;
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper history diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// Earlier revision; 0 is before the first change
    #[arg(value_name = "REV")]
    from: u64,
    /// Later revision [default: the newest]
    #[arg(value_name = "REV")]
    to: Option<u64>,
    #[command(flatten)]
    names: NameArgs,
}

/// Prints the differences.
pub(crate) async fn run(session: &Session, args: DiffArgs) -> Result<(), CliError> {
    show(session.format, differences(session, args).await)
}

async fn differences(session: &Session, args: DiffArgs) -> Result<Vec<Difference>, CliError> {
    let client = Client::connect(&session.server).await?;
    let mut request = v1::DiffRevisionsRequest {
        from_revision: Some(args.from),
        to_revision: args.to,
        filter: Some(args.names.filter()),
        page_size: PAGE,
        page_token: String::new(),
    };
    let mut differences = Vec::new();
    loop {
        let page = client.answer(client.history.clone().diff_revisions(request.clone())).await?;
        for v1::ObjectChange { key, before, after } in page.objects {
            note_kill(key, before.is_some(), after.is_some());
            let (before, after) = (before.and_then(item), after.and_then(item));
            differences.extend(Difference::between(before.as_ref(), after.as_ref(), None)?);
        }
        if page.next_page_token.is_empty() {
            return Ok(differences);
        }
        request.page_token = page.next_page_token;
    }
}

/// Reports a changed kill: it has no settings to compare.
fn note_kill(key: Option<v1::ObjectKey>, was: bool, is: bool) {
    let Some(object_key::Kind::Kill(pattern)) = key.and_then(|key| key.kind) else { return };
    let done = match (was, is) {
        (false, _) => "set",
        (_, false) => "ended",
        _ => "replaced",
    };
    print_message(format_args!("kill {} was {done}", printable(&key::words(Some(&pattern)))));
}
