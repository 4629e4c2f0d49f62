//! `damper kill`: stops retries and hedges, with `--calls` all calls, at once and for a limited time.
//!
//! An operator uses it during an incident: the output states the effect and how to end it.

use std::time::Duration;

use clap::Args;
use damper_core::kill::{DEFAULT_TIME_TO_LIVE, check_time_to_live};
use damper_core::{Faults, fault::Millis};
use damper_proto::{convert, v1};

use super::kills::{Selectors, list, options_of, routes_text, stops, until};
use super::replicas::warn_where_missing;
use crate::error::{CliError, print_message};
use crate::output::figures::remaining;
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::{WriteArgs, warn, warnings};

/// Arguments of `damper kill`.
#[derive(Args, Debug)]
#[command(after_help = "A kill switch overrides all rules: it stops retries and hedges on its routes, and \
    ends calls that wait for a retry. It expires on its own, also in disconnected processes.\n\n  \
    damper kill --callee inventory --reason 'INC-7: overload' --wait\n  \
    damper kills\n  \
    damper unkill --callee inventory")]
pub(crate) struct KillArgs {
    #[command(flatten)]
    selectors: Selectors,
    /// Block all calls of the selected routes, not only retries and hedges; also on routes without a rule
    #[arg(long)]
    calls: bool,
    /// Time after which the kill switch ends by itself, at most 24h [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// Set the kill switch only if the stored one is at this revision; 0 = only if none is stored for these
    /// routes
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    /// Replace the stored kill switch for the same routes even if the stored one stops more calls or lasts
    /// longer
    #[arg(long)]
    replace: bool,
    /// Set the kill switch even if no known route matches its names and they look misspelt
    #[arg(long)]
    unseen: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Sets the kill.
pub(crate) async fn run(session: &Session, args: KillArgs) -> Result<(), CliError> {
    let pattern = args.selectors.pattern()?;
    if args.write.reason.trim().is_empty() {
        return Err(CliError::Usage("--reason: required".to_owned()));
    }
    let time_to_live = args.ttl.unwrap_or(DEFAULT_TIME_TO_LIVE);
    let mut faults = Faults::none();
    check_time_to_live(time_to_live, &mut faults);
    if let Some(fault) = faults.iter().next() {
        return Err(CliError::Data(vec![format!("--ttl: {}", fault.problem)]));
    }
    let client = Client::connect(&session.server).await?;
    let request = v1::KillRequest {
        key: Some(pattern.clone()),
        calls: args.calls,
        time_to_live: prost_types::Duration::try_from(time_to_live).ok(),
        options: Some(args.write.options()),
        expected_revision: args.expected_revision,
        also: Vec::new(),
    };
    if !args.replace {
        weakens_none(&client, &request, time_to_live).await?;
    }
    if !args.unseen {
        is_no_slip(&client, &request).await?;
    }
    let response = client.answer_in(client.kills.clone().kill(request), &locate).await?;
    if args.write.dry_run || !args.write.waits() {
        // Waiting ends with the same line.
        warn_where_missing(&client).await;
    }
    warn(&warnings(&format!("kill {}", routes_text(&pattern)), response.reach.as_ref(), &[]));
    let text = || sentences(&response, &pattern, time_to_live, args.write.dry_run);
    show(session.format, &response, text)?;
    print_message(format_args!("revision {}{}", response.revision, args.write.suffix()));
    if args.write.dry_run {
        return Ok(());
    }
    let server =
        session.server.server.as_ref().map_or_else(String::new, |server| format!(" --server {server}"));
    print_message(format_args!("end it early with: damper unkill {}{server}", options_of(&pattern)));
    if response.kill.as_ref().is_some_and(|kill| kill.unstored) {
        return unproven(args.write.waits());
    }
    args.write.delivered(&client, Some(response.revision)).await
}

/// The store cannot accept the kill: it is in force from memory, and has no revision to acknowledge.
pub(super) fn unproven(waits: bool) -> Result<(), CliError> {
    print_message("not yet stored: in force from memory, stored once the store is available");
    match waits {
        true => Err(CliError::Undelivered("delivery is unknown until it is stored".to_owned())),
        false => Ok(()),
    }
}

/// Returns the option of a field.
fn locate(field: &str) -> String {
    match field {
        "time_to_live" => "--ttl".to_owned(),
        field => crate::error::as_is(field),
    }
}

/// Rejects a kill that would weaken one of another operator.
async fn weakens_none(
    client: &Client,
    request: &v1::KillRequest,
    time_to_live: Duration,
) -> Result<(), CliError> {
    let Some(held) = list(client).await?.kills.into_iter().find(|kill| kill.key == request.key) else {
        return Ok(());
    };
    let left = held.remaining.and_then(convert::length).unwrap_or_default();
    let what = printable(&format!(
        "{} stopped for {} more ({}, {})",
        stops(&held),
        remaining(held.remaining.as_ref()),
        held.reason,
        held.updated_by
    ));
    if held.calls && !request.calls || time_to_live < left {
        return Err(CliError::Conflict(format!(
            "a kill with this selection is in force: {what}; add --replace to weaken or shorten it"
        )));
    }
    print_message(format_args!("replaces a kill with the same selection: {what}"));
    Ok(())
}

/// Rejects a kill that matches no known route if similar names exist: probably a typing error.
async fn is_no_slip(client: &Client, request: &v1::KillRequest) -> Result<(), CliError> {
    let options = v1::WriteOptions { validate_only: true, ..request.options.clone().unwrap_or_default() };
    let tried = v1::KillRequest { options: Some(options), ..request.clone() };
    let tried = client.answer_in(client.kills.clone().kill(tried), &locate).await?;
    let reach = tried.reach.unwrap_or_default();
    if reach.routes > 0 || reach.nearest.is_empty() {
        return Ok(());
    }
    warn_where_missing(client).await;
    Err(CliError::Missing(printable(&format!(
        "no known route matches, nothing is stopped; nearest: {}; add --unseen to override",
        reach.nearest.join(", ")
    ))))
}

/// Effect, reach and end of the kill.
fn sentences(
    response: &v1::KillResponse,
    pattern: &v1::Pattern,
    time_to_live: Duration,
    dry_run: bool,
) -> String {
    let kill = response.kill.clone().unwrap_or_default();
    let reach = response.reach.clone().unwrap_or_default();
    let stopped = if kill.calls { "every call" } else { "retries and hedges" };
    let count = |n: u32, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let where_now = match reach.routes {
        0 => "on no known route".to_owned(),
        routes => format!("on {}", count(routes, "known route")),
    };
    printable(&format!(
        "{}stopped: {stopped} {}, {where_now}, sent to {}, until {} (for {})",
        if dry_run { "would be " } else { "" },
        routes_text(pattern),
        count(reach.clients, "connected client"),
        until(&kill),
        Millis(time_to_live)
    )) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effect_is_one_sentence() {
        let pattern = v1::Pattern {
            caller_service: "*".into(),
            caller_cluster: "*".into(),
            callee_service: "stock".into(),
            callee_method: "*".into(),
        };
        let expires_at = Some(prost_types::Timestamp { seconds: 86_400, nanos: 5 });
        let response = v1::KillResponse {
            kill: Some(v1::KillSwitch { expires_at, ..Default::default() }),
            reach: Some(v1::RuleReach { routes: 12, clients: 1, ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(
            sentences(&response, &pattern, Duration::from_secs(3600), false),
            "stopped: retries and hedges to stock, on 12 known routes, sent to 1 connected client, until \
             1970-01-02T00:00:00Z (for 1h)\n"
        );
    }
}
