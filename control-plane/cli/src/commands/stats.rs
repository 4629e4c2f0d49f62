//! `damper stats [-w]`: statistics of all routes or of one, once or continuously.
//!
//! With `-w` a terminal is redrawn; a file or pipe gets a line per route and interval, or with `-o json` one
//! message of the server per line.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};

use clap::Args;
use damper_core::fault::Millis;
use damper_proto::{manifest, v1};
use futures_util::StreamExt as _;

use crate::commands::kills;
use crate::error::{CliError, print_message};
use crate::input::filter::{FilterArgs, WindowArgs};
use crate::input::key;
use crate::output::figures;
use crate::output::route_detail::portrait;
use crate::output::{self, Format, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `damper stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Repeat until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Time between two updates of --watch, 1s to 60s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    interval: std::time::Duration,
    /// Show all statistics of this route; while the command runs, the processes of the route report every
    /// second. With -w the rates are those of the last second, unless --window is set
    #[arg(long, value_name = "'CALLER CLUSTER CALLEE METHOD'")]
    route: Option<String>,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Default window of a watched route.
const LAST_SECOND: prost_types::Duration = prost_types::Duration { seconds: 1, nanos: 0 };

/// Prints the statistics.
pub(crate) async fn run(session: &Session, args: StatsArgs) -> Result<(), CliError> {
    let route = args.route.as_deref().map(key::route_of).transpose()?;
    let last_second = (args.watch && route.is_some()).then_some(LAST_SECOND);
    let window = args.window.wire()?.or(last_second);
    let mut client = Client::connect(&session.server).await?;
    let interval = prost_types::Duration::try_from(args.interval)
        .map_err(|_| CliError::Usage("--interval: must be between 1s and 60s".to_owned()))?;
    let request = v1::WatchRequest {
        interval: Some(interval),
        filter: Some(args.filter.filter()),
        rules: false,
        window,
        route: route.clone(),
    };
    let mut view = View { of_one: route.is_some(), ..View::default() };
    loop {
        let mut received = false;
        let ended = one(session, &args, &request, &client, &mut view, &mut received).await;
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
    args: &StatsArgs,
    request: &v1::WatchRequest,
    client: &Client,
    view: &mut View,
    received: &mut bool,
) -> Result<(), CliError> {
    let mut stream = Box::pin(client.watch(request.clone()).await?);
    while let Some(message) = stream.next().await {
        let message = message?;
        *received = true;
        view.take(&message);
        if !args.watch && view.of_one && view.routes.is_empty() {
            let words = key::route_columns(request.route.as_ref()).join(" ");
            return Err(CliError::Missing(format!("no client reports the route {words}")));
        }
        if !args.watch {
            if session.format == Format::Table {
                kills::warn(&message.kills);
            }
            warn_missing_replicas(&message.missing_replicas);
            if view.routes.is_empty() {
                print_message("no route: no connected service has reported a call that passes the filter");
            }
            return show(session.format, &message, || view.screen());
        }
        follow(session.format, &message, view)?;
    }
    Err(CliError::Unavailable("the server ended the stream".to_owned()))
}

/// Prints one message of a watch.
fn follow(format: Format, message: &v1::WatchResponse, view: &mut View) -> Result<(), CliError> {
    let missing = std::mem::replace(&mut view.missing_replicas, message.missing_replicas.clone());
    let redrawn = format == Format::Table && io::stdout().is_terminal();
    if missing != message.missing_replicas && !redrawn {
        warn_missing_replicas(&message.missing_replicas);
    }
    match format {
        Format::Table if redrawn => {
            output::data(&format!("{CLEAR}{}", view.screen()))?;
            kills::warn(&message.kills);
            warn_missing_replicas(&message.missing_replicas);
            Ok(())
        }
        Format::Table if view.of_one => output::data(&format!("{}\n", view.screen())),
        Format::Table => {
            if !view.headed {
                print_message(&view.head);
            }
            if view.kills_changed(message) {
                kills::warn(&message.kills);
            }
            output::data(&view.lines(&time(message)))
        }
        Format::Yaml => output::data(&format!("---\n{}", manifest::yaml(message))),
        Format::Json => {
            let line = serde_json::to_string(message)
                .map_err(|error| CliError::Defect(format!("a message cannot be printed as JSON: {error}")))?;
            output::data(&(line + "\n"))
        }
    }
}

/// All routes as of the last message.
#[derive(Debug, Default)]
struct View {
    routes: BTreeMap<[String; 4], v1::RouteStats>,
    head: String,
    headed: bool,
    /// True if a single route is requested.
    of_one: bool,
    /// Replicas of the last warning.
    missing_replicas: Vec<String>,
    /// Revisions of the kills of the last warning.
    kills: Vec<u64>,
}

impl View {
    fn take(&mut self, message: &v1::WatchResponse) {
        if message.reset {
            self.routes.clear();
        }
        for key in &message.removed_routes {
            self.routes.remove(&key::route_columns(Some(key)));
        }
        for route in &message.routes {
            self.routes.insert(key::route_columns(route.key.as_ref()), route.clone());
        }
        let window = message.window.and_then(|window| window.try_into().ok());
        let window = window.map_or_else(String::new, |window| format!(", rates over {}", Millis(window)));
        let stale = message
            .stale_since
            .map_or_else(String::new, |since| format!(", NO ANSWER FROM THE STORE SINCE {since}"));
        self.head = format!(
            "{}  revision {}, {}{window}{stale}",
            time(message),
            message.revision,
            figures::many(message.connected_clients as usize, "client")
        );
    }

    /// True if the kills in force changed.
    fn kills_changed(&mut self, message: &v1::WatchResponse) -> bool {
        let kills: Vec<u64> = message.kills.iter().map(|kill| kill.revision).collect();
        std::mem::replace(&mut self.kills, kills) != self.kills
    }

    /// Returns the whole screen.
    fn screen(&self) -> String {
        if self.of_one {
            let portrait = self.routes.values().next().map(portrait);
            let portrait = portrait.unwrap_or_else(|| "No client reports the route yet.\n".to_owned());
            return format!("{}\n\n{portrait}", self.head);
        }
        // Worst first; routes with similar values keep their places, for a stable screen.
        let mut routes: Vec<&v1::RouteStats> = self.routes.values().collect();
        routes.sort_by_key(|route| std::cmp::Reverse((route.amplification * 10.0).round() as u64));
        format!("{}\n\n{}", self.head, figures::stats(routes, None))
    }

    /// Returns a line for every route at this time, with headings the first time.
    fn lines(&mut self, time: &str) -> String {
        let table = figures::stats(self.routes.values(), Some(time)).to_string();
        if std::mem::replace(&mut self.headed, true) {
            table.split_once('\n').map_or_else(String::new, |(_, rows)| rows.to_owned())
        } else {
            table
        }
    }
}

fn time(message: &v1::WatchResponse) -> String {
    message.as_of.map_or_else(String::new, |at| prost_types::Timestamp { nanos: 0, ..at }.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(reset: bool, routes: &[&str], removed: &[&str]) -> v1::WatchResponse {
        let key = |name: &&str| v1::RouteKey { caller_service: (*name).to_owned(), ..Default::default() };
        let route = |name| v1::RouteStats { key: Some(key(name)), ..Default::default() };
        v1::WatchResponse {
            reset,
            routes: routes.iter().map(route).collect(),
            removed_routes: removed.iter().map(key).collect(),
            ..Default::default()
        }
    }

    fn names(view: &View) -> Vec<&str> {
        view.routes.keys().map(|key| key[0].as_str()).collect()
    }

    #[test]
    fn view_applies_changes_removals_and_resets() {
        let mut view = View::default();
        view.take(&message(true, &["a", "b"], &[]));
        view.take(&message(false, &["c", "b"], &["a"]));
        assert_eq!(names(&view), ["b", "c"]);
        view.take(&message(true, &["d"], &[]));
        assert_eq!(names(&view), ["d"]);
    }

    #[test]
    fn routes_have_lines_and_headings_come_once() {
        let mut view = View::default();
        view.take(&message(true, &["a", "b"], &[]));
        let first = view.lines("1 s");
        view.take(&message(false, &["b"], &[]));
        let second = view.lines("2 s");
        assert!(first.starts_with("TIME") && first.lines().count() == 3, "{first}");
        assert!(!second.contains("TIME") && second.lines().count() == 2, "{second}");
    }
}
