//! `damper kills`: kill switches in force and their delivery. Also texts and selectors of kills that commands
//! share.

use clap::Args;
use damper_core::{Pattern, feature};
use damper_proto::{convert, v1};

use crate::error::{CliError, print_message};
use crate::input::key;
use crate::output::figures::remaining;
use crate::output::{Align, Table, printable, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Kills named in a warning.
const MAX_NAMED: usize = 3;

/// Arguments of `damper kills`.
#[derive(Args, Debug)]
pub(crate) struct KillsArgs {}

/// Selection of routes; without any option none.
#[derive(Args, Debug)]
pub(crate) struct Selectors {
    /// Select the routes to this called service
    #[arg(long, value_name = "SERVICE")]
    callee: Option<String>,
    /// Select the routes to this method: package.Service/Method, package.Service/* or GET:/path
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Select the routes from this calling service
    #[arg(long, value_name = "SERVICE")]
    caller: Option<String>,
    /// Select the routes whose callers run in this cluster
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Select all routes of all services
    #[arg(long, conflicts_with_all = ["callee", "method", "caller", "cluster"])]
    all: bool,
}

impl Selectors {
    /// Returns the pattern; errors without a selector.
    pub(crate) fn pattern(&self) -> Result<v1::Pattern, CliError> {
        let given = [&self.caller, &self.cluster, &self.callee, &self.method];
        if !self.all && given.iter().all(|part| part.is_none()) {
            return Err(CliError::Usage(
                "select routes with --callee, --method, --caller or --cluster, or all routes of all services \
                 with --all"
                    .to_owned(),
            ));
        }
        let [caller, cluster, callee, method] = given.map(|part| part.as_deref().unwrap_or("*"));
        Pattern::parse(caller, cluster, callee, method).map(|pattern| (&pattern).into()).map_err(|faults| {
            let option = |path: &str| match path {
                "caller_service" => "--caller",
                "caller_cluster" => "--cluster",
                "callee_service" => "--callee",
                _ => "--method",
            };
            let problems = faults.iter().map(|fault| format!("{}: {}", option(&fault.path), fault.problem));
            CliError::Data(problems.collect())
        })
    }
}

/// Returns the options that select a pattern.
pub(crate) fn options_of(pattern: &v1::Pattern) -> String {
    let columns = key::columns(Some(pattern));
    let names = ["--caller", "--cluster", "--callee", "--method"];
    let given: Vec<String> = names
        .iter()
        .zip(&columns)
        .filter(|(_, value)| *value != "*")
        .map(
            |(name, value)| {
                if value.contains('*') { format!("{name} '{value}'") } else { format!("{name} {value}") }
            },
        )
        .collect();
    if given.is_empty() { "--all".to_owned() } else { given.join(" ") }
}

/// Returns the routes of a pattern as text.
pub(crate) fn routes_text(pattern: &v1::Pattern) -> String {
    let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern;
    let parts = [
        ("from ", caller_service),
        ("from cluster ", caller_cluster),
        ("to ", callee_service),
        ("of ", callee_method),
    ];
    let given: Vec<String> =
        parts.iter().filter(|(_, name)| *name != "*").map(|(word, name)| format!("{word}{name}")).collect();
    if given.is_empty() { "everywhere".to_owned() } else { given.join(" ") }
}

/// Prints the kills.
pub(crate) async fn run(session: &Session, KillsArgs {}: KillsArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let listed = list(&client).await?;
    if listed.kills.is_empty() {
        print_message("no kill is in force");
    }
    let clients = super::clients::all(&client, v1::ListClientsRequest::default()).await?;
    warn_missing_replicas(&clients.missing_replicas);
    show(session.format, &listed, || table(&listed.kills, &clients.clients).to_string())
}

/// Returns all kills in force.
pub(crate) async fn list(client: &Client) -> Result<v1::ListKillsResponse, CliError> {
    client.answer(client.kills.clone().list_kills(v1::ListKillsRequest::default())).await
}

fn table(kills: &[v1::KillSwitch], clients: &[v1::Client]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("STOPS", Left),
        ("REASON", Left),
        ("BY", Left),
        ("UNTIL", Left),
        ("REMAINING", Right),
        ("DELIVERED", Right),
    ]);
    for kill in kills {
        let figures = [
            stops(kill).to_owned(),
            kill.reason.clone(),
            kill.updated_by.clone(),
            until(kill) + if kill.unstored { " (not yet stored)" } else { "" },
            remaining(kill.remaining.as_ref()),
            delivered(kill, clients),
        ];
        table.row(key::columns(kill.key.as_ref()).into_iter().chain(figures));
    }
    table
}

/// Returns the end of a kill.
pub(crate) fn until(kill: &v1::KillSwitch) -> String {
    kill.expires_at.map_or_else(String::new, |at| prost_types::Timestamp { nanos: 0, ..at }.to_string())
}

/// Returns the kind of calls that the kill stops.
pub(crate) fn stops(kill: &v1::KillSwitch) -> &'static str {
    if kill.calls { "calls" } else { "retries" }
}

/// True if the kill stops calls of the client.
pub(crate) fn concerns(kill: &v1::KillSwitch, client: &v1::Client) -> bool {
    let pattern = kill.key.as_ref().and_then(|key| convert::pattern(key).ok());
    let who = client.identity.as_ref();
    pattern.zip(who).is_some_and(|(pattern, who)| pattern.matches_caller(&who.service, &who.cluster))
}

/// True if the client supports kills.
pub(crate) fn obeys(client: &v1::Client) -> bool {
    client.features.iter().any(|feature| feature == feature::KILL_SWITCH)
}

/// Returns the share of the affected clients that acknowledged the kill. A kill that is not stored has no
/// revision to acknowledge.
fn delivered(kill: &v1::KillSwitch, clients: &[v1::Client]) -> String {
    if kill.unstored {
        return "unknown".to_owned();
    }
    let has_it = |client: &v1::Client| {
        client.acknowledged_revision >= kill.revision
            && obeys(client)
            && !client.refused.iter().any(|refusal| refusal.kill && refusal.key == kill.key)
    };
    let concerned: Vec<&v1::Client> = clients.iter().filter(|client| concerns(kill, client)).collect();
    format!("{}/{}", concerned.iter().filter(|client| has_it(client)).count(), concerned.len())
}

/// Warns about kills in force, which change the meaning of a table.
pub(crate) fn warn(kills: &[v1::KillSwitch]) {
    if let Some(line) = warning(kills) {
        print_message(line);
    }
}

/// The same for commands whose response has no kills. Errors are ignored: an older server has no kills.
pub(crate) async fn warn_kills_in_force(client: &Client) {
    if let Ok(listed) = client.kills.clone().list_kills(v1::ListKillsRequest::default()).await {
        warn(&listed.get_ref().kills);
    }
}

fn warning(kills: &[v1::KillSwitch]) -> Option<String> {
    let named = kills.iter().take(MAX_NAMED).map(|kill| {
        let pattern = kill.key.clone().unwrap_or_default();
        let left = remaining(kill.remaining.as_ref());
        printable(&format!(
            "{} stopped {} for {left} more ({})",
            stops(kill),
            routes_text(&pattern),
            kill.reason
        ))
    });
    let named: Vec<String> = named.collect();
    let more = match kills.len() - named.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let (verb, s) = if kills.len() == 1 { ("is", "") } else { ("are", "s") };
    let count = kills.len();
    (count > 0).then(|| {
        format!("warning: {count} kill{s} {verb} in force: {}{more}; see damper kills", named.join("; "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(words: [&str; 4]) -> v1::Pattern {
        let [caller_service, caller_cluster, callee_service, callee_method] = words.map(str::to_owned);
        v1::Pattern { caller_service, caller_cluster, callee_service, callee_method }
    }

    #[test]
    fn pattern_is_shown_as_text_and_as_options() {
        for (words, text, typed) in [
            (["*", "*", "*", "*"], "everywhere", "--all"),
            (["*", "*", "stock", "*"], "to stock", "--callee stock"),
            (
                ["shop", "eu", "stock", "*"],
                "from shop from cluster eu to stock",
                "--caller shop --cluster eu --callee stock",
            ),
            (["*", "*", "*", "p.S/*"], "of p.S/*", "--method 'p.S/*'"),
        ] {
            assert_eq!(
                (routes_text(&pattern(words)).as_str(), options_of(&pattern(words)).as_str()),
                (text, typed)
            );
        }
    }

    #[test]
    fn delivered_counts_acks_of_supporting_clients() {
        let kill =
            v1::KillSwitch { key: Some(pattern(["shop", "*", "*", "*"])), revision: 5, ..Default::default() };
        let client = |service: &str, acknowledged_revision, features: &[&str]| v1::Client {
            identity: Some(v1::Identity { service: service.to_owned(), ..Default::default() }),
            acknowledged_revision,
            features: features.iter().map(|feature| (*feature).to_owned()).collect(),
            ..Default::default()
        };
        let clients = [
            client("shop", 5, &["kill_switch"]),
            client("shop", 4, &["kill_switch"]),
            client("shop", 9, &["base"]),
            client("cart", 9, &["kill_switch"]),
        ];
        assert_eq!(delivered(&kill, &clients), "1/3");
        assert_eq!(delivered(&v1::KillSwitch { unstored: true, ..kill }, &clients), "unknown");
    }

    #[test]
    fn a_warning_names_the_first_kills_and_counts_the_rest() {
        assert_eq!(warning(&[]), None);
        let kill = v1::KillSwitch {
            key: Some(pattern(["*", "*", "stock", "*"])),
            calls: true,
            reason: "down\x1b".to_owned(),
            remaining: Some(prost_types::Duration { seconds: 90, nanos: 0 }),
            ..Default::default()
        };
        let expected = "calls stopped to stock for 90s more (down\\u{1b})";
        let one = warning(std::slice::from_ref(&kill)).unwrap();
        assert_eq!(one, format!("warning: 1 kill is in force: {expected}; see damper kills"));
        let many = warning(&vec![kill; 5]).unwrap();
        assert!(
            many.starts_with("warning: 5 kills are in force") && many.contains("; and 2 more;"),
            "{many}"
        );
    }
}
