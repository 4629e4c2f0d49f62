//! `damper failures ROUTE [-w]`: recent failed calls of a route, with the result of each attempt.
//!
//! Once, latest first; with `-w` as they arrive, latest last: a row per call, or with `-o json` one call per
//! line. The calls are a sample: a busy route fails more often than listed.

use clap::Args;
use damper_core::{Code, Ending, Fate};
use damper_proto::{manifest, v1};
use futures_util::StreamExt as _;

use crate::error::{CliError, print_message};
use crate::input::key::{self, Route};
use crate::output::figures;
use crate::output::{self, Align, Format, Table, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper failures`.
#[derive(Args, Debug)]
pub(crate) struct FailuresArgs {
    #[command(flatten)]
    route: Route,
    /// Keep running until Ctrl-C and print each new failed call
    #[arg(short, long)]
    watch: bool,
}

/// Prints the calls.
pub(crate) async fn run(session: &Session, args: FailuresArgs) -> Result<(), CliError> {
    let route = args.route.key()?;
    let mut client = Client::connect(&session.server).await?;
    let mut view = View::default();
    loop {
        let mut received = false;
        let ended = one(session, &args, &route, &client, &mut view, &mut received).await;
        match ended {
            Err(broken @ CliError::Unavailable(_)) if args.watch => {
                client = client.next(received, broken).await?
            }
            ended => return ended,
        }
    }
}

/// Prints the messages of one connection.
async fn one(
    session: &Session,
    args: &FailuresArgs,
    route: &v1::RouteKey,
    client: &Client,
    view: &mut View,
    received: &mut bool,
) -> Result<(), CliError> {
    let request = v1::WatchRequest { route: Some(route.clone()), ..Default::default() };
    let mut stream = Box::pin(client.watch(request).await?);
    while let Some(message) = stream.next().await {
        let message = message?;
        *received = true;
        if !args.watch {
            warn_missing_replicas(&message.missing_replicas);
            return once(session.format, route, message);
        }
        if !message.continued {
            view.follow(session.format, message.failures)?;
        }
    }
    Err(CliError::Unavailable("the server ended the stream".to_owned()))
}

fn once(format: Format, route: &v1::RouteKey, message: v1::WatchResponse) -> Result<(), CliError> {
    let v1::WatchResponse { as_of, routes, failures, missing_replicas, .. } = message;
    if routes.is_empty() && failures.is_empty() {
        let words = key::route_columns(Some(route)).join(" ");
        return Err(CliError::Missing(format!("no client reports the route {words}")));
    }
    if failures.is_empty() {
        print_message("no failed call since the server started, or the SDK of the caller is too old");
    }
    let latest = v1::WatchResponse { as_of, failures, missing_replicas, ..Default::default() };
    show(format, &latest, || table(&latest.failures).to_string())
}

/// State of a watch.
#[derive(Debug, Default)]
struct View {
    known: Vec<v1::RouteFailure>,
    headed: bool,
}

impl View {
    /// Returns the new calls, latest last.
    fn news(&mut self, mut latest: Vec<v1::RouteFailure>) -> Vec<v1::RouteFailure> {
        latest.reverse();
        let new = latest.iter().filter(|failure| !self.known.contains(failure)).cloned().collect();
        self.known = latest;
        new
    }

    /// Prints the new calls.
    fn follow(&mut self, format: Format, latest: Vec<v1::RouteFailure>) -> Result<(), CliError> {
        let new = self.news(latest);
        match format {
            Format::Table if new.is_empty() => Ok(()),
            Format::Table => output::data(&self.lines(&new)),
            Format::Yaml => {
                let document = |failure| format!("---\n{}", manifest::yaml(failure));
                output::data(&new.iter().map(document).collect::<String>())
            }
            Format::Json => {
                let lines: Result<Vec<_>, _> = new.iter().map(serde_json::to_string).collect();
                let lines = lines.map_err(|error| {
                    CliError::Defect(format!("a message cannot be printed as JSON: {error}"))
                })?;
                output::data(&lines.into_iter().map(|line| line + "\n").collect::<String>())
            }
        }
    }

    /// Returns a line for each call, with headings the first time.
    fn lines(&mut self, new: &[v1::RouteFailure]) -> String {
        let text = table(new).to_string();
        if std::mem::replace(&mut self.headed, true) {
            text.split_once('\n').map_or_else(String::new, |(_, rows)| rows.to_owned())
        } else {
            text
        }
    }
}

/// Returns a row for each call; attempts last, since they may be long.
fn table(failures: &[v1::RouteFailure]) -> Table {
    let mut table = Table::new(&[
        ("ENDED", Align::Left),
        ("FATE", Align::Left),
        ("CODE", Align::Left),
        ("LATENCY", Align::Right),
        ("COUNT", Align::Right),
        ("TRACE", Align::Left),
        ("CLIENT", Align::Left),
        ("ATTEMPTS", Align::Left),
    ]);
    for v1::RouteFailure { client, call } in failures {
        let call = call.clone().unwrap_or_default();
        table.row([
            call.ended_at.map_or_else(String::new, in_ms),
            fate(&call),
            code(call.code),
            figures::time(call.latency.as_ref()),
            call.sends.to_string(),
            call.trace_id.clone(),
            client.as_ref().map_or_else(String::new, |client| client.instance.clone()),
            call.attempts.iter().map(attempt).collect::<Vec<_>>().join("; "),
        ]);
    }
    table
}

/// `0ms: 12ms UNAVAILABLE (not connected)`: start, duration and result of an attempt.
fn attempt(attempt: &v1::FailedAttempt) -> String {
    let v1::FailedAttempt { sent_after, took, code: ended, hedge, detail } = attempt;
    let kind = if *hedge { "hedge " } else { "" };
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let ended = match took {
        Some(took) => format!("{} {}", figures::time(Some(took)), code(*ended)),
        None => "no response before the end of the call".to_owned(),
    };
    format!("{kind}at {}: {ended}{detail}", figures::time(sent_after.as_ref()))
}

fn in_ms(at: prost_types::Timestamp) -> String {
    prost_types::Timestamp { nanos: at.nanos / 1_000_000 * 1_000_000, ..at }.to_string()
}

fn fate(call: &v1::FailedCall) -> String {
    let fate = v1::Fate::try_from(call.fate).ok().and_then(|fate| Fate::try_from(fate).ok());
    // A newer server may know more.
    fate.map_or_else(|| call.fate.to_string(), |fate| Ending { fate, would: call.would }.to_string())
}

fn code(number: i32) -> String {
    let code = v1::Code::try_from(number).map(Code::from);
    code.map_or_else(|_| number.to_string(), |code| code.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(trace_id: &str) -> v1::RouteFailure {
        let call = v1::FailedCall { trace_id: trace_id.to_owned(), ..Default::default() };
        v1::RouteFailure { client: None, call: Some(call) }
    }

    #[test]
    fn each_call_is_new_once_and_the_latest_comes_last() {
        let mut view = View::default();
        assert_eq!(view.news(vec![failure("b"), failure("a")]), [failure("a"), failure("b")]);
        assert_eq!(view.news(vec![failure("c"), failure("b"), failure("a")]), [failure("c")]);
        assert!(view.news(vec![failure("c"), failure("b")]).is_empty());
    }

    #[test]
    fn each_call_has_one_line_and_headings_are_written_once() {
        let mut view = View::default();
        let first = view.lines(&[failure("a"), failure("b")]);
        assert!(first.starts_with("ENDED") && first.lines().count() == 3, "{first}");
        let second = view.lines(&[failure("c")]);
        assert!(!second.contains("ENDED") && second.lines().count() == 1, "{second}");
    }

    #[test]
    fn attempt_shows_its_start_and_result() {
        let ms = |ms: i32| Some(prost_types::Duration { seconds: 0, nanos: ms * 1_000_000 });
        let failed = v1::FailedAttempt {
            sent_after: ms(0),
            took: ms(12),
            code: v1::Code::Unavailable.into(),
            hedge: false,
            detail: "not connected".to_owned(),
        };
        assert_eq!(attempt(&failed), "at 0ms: 12ms UNAVAILABLE (not connected)");
        let overtaken = v1::FailedAttempt { sent_after: ms(50), hedge: true, ..Default::default() };
        assert_eq!(attempt(&overtaken), "hedge at 50ms: no response before the end of the call");
    }
}
