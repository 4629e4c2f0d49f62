//! `damper unkill`: ends a kill early.

use clap::Args;
use damper_proto::v1;

use super::kill::unproven;
use super::kills::{Selectors, list, options_of, routes_text, warn_kills_in_force};
use crate::error::{CliError, print_message};
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::WriteArgs;

/// Arguments of `damper unkill`.
#[derive(Args, Debug)]
pub(crate) struct UnkillArgs {
    #[command(flatten)]
    selectors: Selectors,
    /// End all kills in force
    #[arg(long, conflicts_with_all = ["callee", "method", "caller", "cluster", "all", "expected_revision"])]
    every: bool,
    /// Accepted so that the options of `kill` work here: a kill ends with or without it
    #[arg(long, hide = true)]
    #[allow(dead_code, reason = "see its help")]
    calls: bool,
    /// End the kill switch only if it is still at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Ends the kill with exactly these selectors, or all.
pub(crate) async fn run(session: &Session, args: UnkillArgs) -> Result<(), CliError> {
    if !args.every {
        let pattern = args.selectors.pattern()?;
        let client = Client::connect(&session.server).await?;
        return end(session, &client, &args, pattern).await;
    }
    let client = Client::connect(&session.server).await?;
    let kills = list(&client).await?.kills;
    if kills.is_empty() {
        return Err(CliError::Missing("no kill is in force".to_owned()));
    }
    for pattern in kills.into_iter().filter_map(|kill| kill.key) {
        end(session, &client, &args, pattern).await?;
    }
    Ok(())
}

/// Ends one kill and lists kills that are still in force.
async fn end(
    session: &Session,
    client: &Client,
    args: &UnkillArgs,
    pattern: v1::Pattern,
) -> Result<(), CliError> {
    let request = v1::UnkillRequest {
        key: Some(pattern.clone()),
        expected_revision: args.expected_revision,
        options: Some(args.write.options()),
        also: Vec::new(),
    };
    let response = match client.answer(client.kills.clone().unkill(request)).await {
        Err(CliError::Missing(_)) => return Err(missing(client, &pattern).await),
        response => response?,
    };
    show(session.format, &response, || {
        format!("no longer stopped: {}\n", printable(&routes_text(&pattern)))
    })?;
    print_message(format_args!("revision {}{}", response.revision, args.write.suffix()));
    if response.unstored {
        return unproven(args.write.waits());
    }
    args.write.delivered(client, Some(response.revision)).await?;
    if !args.write.dry_run && !args.every {
        warn_kills_in_force(client).await;
    }
    Ok(())
}

/// Error for an unknown kill, with those in force.
async fn missing(client: &Client, pattern: &v1::Pattern) -> CliError {
    let kills = match list(client).await {
        Ok(listed) => listed.kills,
        Err(error) => return error,
    };
    let mut lines = vec![format!("no kill with {}", options_of(pattern))];
    lines.extend(kills.iter().filter_map(|kill| {
        Some(format!("in force: damper unkill {} ({})", options_of(kill.key.as_ref()?), kill.reason))
    }));
    if kills.is_empty() {
        lines.push("no kill is in force".to_owned());
    }
    CliError::Missing(lines.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n"))
}
