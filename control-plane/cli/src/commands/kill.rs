//! `damper kill`: stops retries and hedges, with `--calls` first sends too, at once and for a time.
//!
//! It is for the middle of an incident: what it does is said in whole sentences, and so is how to undo it.

use std::time::Duration;

use clap::Args;
use damper_core::kill::{DEFAULT_TIME_TO_LIVE, check_time_to_live};
use damper_core::{Faults, fault::Millis};
use damper_proto::v1;

use super::kills::{Selectors, in_words, options_of, until};
use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::output::{message, printable, show};
use crate::write::{WriteArgs, warn, warnings};

/// Arguments of `damper kill`.
#[derive(Args, Debug)]
#[command(
    after_help = "In force it goes before every rule; on routes that it stops nothing is retried or hedged, and \
    calls that wait for a retry end. It ends by itself, also in processes that have lost the control plane.\n\n  \
    damper kill --callee inventory --reason 'INC-7: overload' --wait\n  \
    damper kills\n  \
    damper unkill --callee inventory"
)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    selectors: Selectors,
    /// Refuse first sends too, also on routes without a rule
    #[arg(long)]
    calls: bool,
    /// For how long, at most a day [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// Only where the kill is at this revision; 0 = only where there is none yet
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Sets the kill.
pub(crate) async fn run(session: &Session, args: KillArgs) -> Result<(), Error> {
    let pattern = args.selectors.pattern()?;
    if args.write.reason.trim().is_empty() {
        return Err(Error::Usage("--reason: must be given: whoever meets the kill must know why".to_owned()));
    }
    let time_to_live = args.ttl.unwrap_or(DEFAULT_TIME_TO_LIVE);
    let mut faults = Faults::none();
    check_time_to_live(time_to_live, &mut faults);
    if let Some(fault) = faults.iter().next() {
        return Err(Error::Data(vec![format!("--ttl: {}", fault.problem)]));
    }
    let client = Client::connect(&session.server).await?;
    let request = v1::KillRequest {
        key: Some(pattern.clone()),
        calls: args.calls,
        time_to_live: prost_types::Duration::try_from(time_to_live).ok(),
        options: Some(args.write.options()),
        expected_revision: args.expected_revision,
    };
    let locate = |field: &str| match field {
        "time_to_live" => "--ttl".to_owned(),
        field => crate::status::as_is(field),
    };
    let response = client.answer_in(client.kills.clone().kill(request), &locate).await?;
    warn(&warnings(&format!("kill {}", in_words(&pattern)), response.reach.as_ref(), &[]));
    let text = || sentences(&response, &pattern, time_to_live);
    show(session.format, &response, text)?;
    message(format_args!("revision {}{}", response.revision, args.write.suffix()));
    if args.write.dry_run {
        return Ok(());
    }
    let server =
        session.server.server.as_ref().map_or_else(String::new, |server| format!(" --server {server}"));
    message(format_args!("to end it before its time: damper unkill {}{server}", options_of(&pattern)));
    args.write.delivered(&client, Some(response.revision)).await
}

/// What is done, whom it concerns, until when.
fn sentences(response: &v1::KillResponse, pattern: &v1::Pattern, time_to_live: Duration) -> String {
    let kill = response.kill.clone().unwrap_or_default();
    let reach = response.reach.clone().unwrap_or_default();
    let stopped = if kill.calls { "every call" } else { "retries and hedges" };
    let count = |n: u32, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let (routes, clients) = (count(reach.routes, "route"), count(reach.clients, "connected client"));
    printable(&format!(
        "stopped: {stopped} {}, on {routes} of {clients}, until {} (for {})",
        in_words(pattern),
        until(&kill),
        Millis(time_to_live)
    )) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_told_in_a_sentence() {
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
            sentences(&response, &pattern, Duration::from_secs(3600)),
            "stopped: retries and hedges to stock, on 12 routes of 1 connected client, until 1970-01-02T00:00:00Z (for 1h)\n"
        );
    }
}
