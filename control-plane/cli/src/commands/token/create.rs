//! `damper token create`: the token alone on stdout, so that it can be sent into a file or another command.

use std::time::Duration;

use clap::Args;
use damper_proto::v1;

use super::{ChangeArgs, Role, end, role_name};
use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::output::{message, printable, show};

/// Arguments of `damper token create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Whose it is or what it is for
    name: String,
    /// What it may do
    #[arg(long)]
    role: Role,
    /// Only as this caller service, or for rules of it: exact, or PREFIX*; can be repeated
    #[arg(long, value_name = "SERVICE")]
    caller: Vec<String>,
    /// Only for rules, guards and kills of this callee service: exact, or PREFIX*; can be repeated
    #[arg(long, value_name = "SERVICE")]
    callee: Vec<String>,
    /// How long it is good: 90d, at least 1m and at most 3650d; or never, for one that is good until it is revoked
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = time_to_live)]
    ttl: TimeToLive,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeToLive {
    For(Duration),
    Ever,
}

fn time_to_live(text: &str) -> Result<TimeToLive, String> {
    if text == "never" {
        return Ok(TimeToLive::Ever);
    }
    let said = humantime::parse_duration(text);
    said.map(TimeToLive::For).map_err(|_| "is neither a time such as 90d nor never".to_owned())
}

/// Makes a token.
pub(crate) async fn run(session: &Session, args: CreateArgs) -> Result<(), Error> {
    let CreateArgs { name, role, caller: callers, callee: callees, ttl, change } = args;
    let limited = !callers.is_empty() || !callees.is_empty();
    let time_to_live = match ttl {
        TimeToLive::Ever => None,
        TimeToLive::For(time) => Some(
            prost_types::Duration::try_from(time)
                .map_err(|_| Error::data("--ttl: is longer than can be said"))?,
        ),
    };
    let request = v1::CreateTokenRequest {
        name,
        role: role.wire().into(),
        scope: limited.then_some(v1::Scope { callers, callees }),
        time_to_live,
        never_expires: ttl == TimeToLive::Ever,
        options: Some(change.options()),
    };
    let client = Client::connect(&session.server).await?;
    let response = client.answer_in(client.tokens.clone().create_token(request), &in_options).await?;
    let secret = || if response.secret.is_empty() { String::new() } else { format!("{}\n", response.secret) };
    show(session.format, &response, secret)?;
    let token = response.token.clone().unwrap_or_default();
    let what = format!("{} {}, good until {}", role_name(token.role()), token.name, end(token.expires_at));
    match (change.dry_run, response.secret.is_empty()) {
        (true, _) => message(format_args!("{} (dry run: nothing was changed)", printable(&what))),
        (_, true) => message(format_args!(
            "{}: this request was carried out before; its token {} is not told again",
            printable(&what),
            token.id
        )),
        (_, false) => message(format_args!(
            "{}; its id is {}. The token is not shown again",
            printable(&what),
            token.id
        )),
    }
    Ok(())
}

/// Fields in the words of the command line.
fn in_options(field: &str) -> String {
    let (whole, place) = field.split_once('[').unwrap_or((field, ""));
    let option = match whole {
        "name" => "NAME",
        "role" => "--role",
        "scope" | "scope.callers" => "--caller",
        "scope.callees" => "--callee",
        "time_to_live" => "--ttl",
        _ => return crate::status::as_is(field),
    };
    if place.is_empty() { option.to_owned() } else { format!("{option} [{place}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_a_time_or_for_ever() {
        assert_eq!(time_to_live("never"), Ok(TimeToLive::Ever));
        assert_eq!(time_to_live("90d"), Ok(TimeToLive::For(Duration::from_secs(90 * 86_400))));
        for bad in ["", "ever", "90"] {
            assert!(time_to_live(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fault_is_told_at_the_option_it_came_from() {
        assert_eq!(in_options("scope.callers[2]"), "--caller [2]");
        assert_eq!(in_options("time_to_live"), "--ttl");
        assert_eq!(in_options("options.reason"), "--reason");
    }
}
