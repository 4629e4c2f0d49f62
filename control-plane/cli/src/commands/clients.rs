//! `damper clients [-w]`: connected clients, their revisions, and rejected or unsupported resources.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;
use damper_proto::{manifest, v1};

use crate::commands::kills::{concerns, obeys, routes_text};
use crate::error::{CliError, print_message};
use crate::input::filter::mode_name;
use crate::input::key;
use crate::output::figures::{age, now};
use crate::output::{self, Align, Format, Table, printable, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `damper clients`.
#[derive(Args, Debug)]
pub(crate) struct ClientsArgs {
    /// List only the processes of this service
    #[arg(long, value_name = "SERVICE", default_value = "", hide_default_value = true)]
    service: String,
    /// List only the processes in this cluster
    #[arg(long, value_name = "CLUSTER", default_value = "", hide_default_value = true)]
    cluster: String,
    /// List only processes that have not confirmed the newest revision, that reject a rule, guard or kill
    /// switch, or that lack an SDK feature which a rule or kill switch needs
    #[arg(long)]
    lagging: bool,
    /// Repeat until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Time between two updates of --watch
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
}

/// Prints the clients and the resources that they do not apply.
pub(crate) async fn run(session: &Session, args: ClientsArgs) -> Result<(), CliError> {
    let mut client = Client::connect(&session.server).await?;
    let (mut received, mut watched) = (false, Watched::default());
    let request = v1::ListClientsRequest {
        service: args.service.clone(),
        cluster: args.cluster.clone(),
        ..Default::default()
    };
    let is_selected = !args.service.is_empty() || !args.cluster.is_empty();
    loop {
        let listed = all(&client, request.clone()).await;
        let mut response = match listed {
            Err(broken @ CliError::Unavailable(_)) if args.watch => {
                client = client.next(received, broken).await?;
                received = false;
                continue;
            }
            listed => listed?,
        };
        received = true;
        let connected = response.clients.len();
        let kills = kills(&client).await;
        if args.lagging {
            response.clients.retain(|client| lags(client, &kills));
        }
        if !args.watch {
            if response.clients.is_empty() {
                print_message(empty_reason(connected, is_selected));
            }
            show(session.format, &response, || screen(&response, &kills))?;
            warn_missing_replicas(&response.missing_replicas);
            return Ok(());
        }
        let none = response.clients.is_empty().then(|| empty_reason(connected, is_selected));
        follow(session.format, &response, none, &kills, &mut watched)?;
        tokio::time::sleep(args.interval).await;
    }
}

/// Returns all pages as one response; pages may differ in time.
pub(super) async fn all(
    client: &Client,
    mut request: v1::ListClientsRequest,
) -> Result<v1::ListClientsResponse, CliError> {
    let mut all = Vec::new();
    loop {
        let page = client.answer(client.fleet.clone().list_clients(request.clone())).await?;
        all.extend(page.clients);
        if page.next_page_token.is_empty() {
            return Ok(v1::ListClientsResponse { clients: all, ..page });
        }
        request.page_token = page.next_page_token;
    }
}

/// Reason for an empty list; `is_selected`: a filter is set.
fn empty_reason(connected: usize, is_selected: bool) -> &'static str {
    match (connected, is_selected) {
        (0, false) => "no client is connected",
        (0, true) => "no matching client is connected",
        _ => "all connected clients are up to date",
    }
}

/// State of a watch.
#[derive(Debug, Default)]
struct Watched {
    headed: bool,
    missing_replicas: Vec<String>,
}

/// Prints one response of a watch.
fn follow(
    format: Format,
    response: &v1::ListClientsResponse,
    none: Option<&str>,
    kills: &[v1::KillSwitch],
    watched: &mut Watched,
) -> Result<(), CliError> {
    let missing = std::mem::replace(&mut watched.missing_replicas, response.missing_replicas.clone());
    let redrawn = format == Format::Table && io::stdout().is_terminal();
    if missing != response.missing_replicas && !redrawn {
        warn_missing_replicas(&response.missing_replicas);
    }
    match format {
        Format::Table if redrawn => {
            output::data(&format!("{CLEAR}{}", screen(response, kills)))?;
            if let Some(none) = none {
                print_message(none);
            }
            warn_missing_replicas(&response.missing_replicas);
            Ok(())
        }
        Format::Table => {
            let text = screen(response, kills);
            let first = !std::mem::replace(&mut watched.headed, true);
            output::data(if first { &text } else { text.split_once('\n').map_or("", |(_, rows)| rows) })
        }
        Format::Yaml => output::data(&format!("---\n{}", manifest::yaml(response))),
        Format::Json => {
            let line = serde_json::to_string(response)
                .map_err(|error| CliError::Defect(format!("a message cannot be printed as JSON: {error}")))?;
            output::data(&(line + "\n"))
        }
    }
}

/// Returns the kills in force; none from a server without kills.
async fn kills(client: &Client) -> Vec<v1::KillSwitch> {
    let listed = client.kills.clone().list_kills(v1::ListKillsRequest::default()).await;
    listed.map(|listed| listed.into_inner().kills).unwrap_or_default()
}

fn lags(client: &v1::Client, kills: &[v1::KillSwitch]) -> bool {
    client.behind_since.is_some()
        || !client.refused.is_empty()
        || !client.withheld.is_empty()
        || disobeyed(client, kills).next().is_some()
}

/// Returns the kills that match a client without support for kills.
fn disobeyed<'a>(
    client: &'a v1::Client,
    kills: &'a [v1::KillSwitch],
) -> impl Iterator<Item = &'a v1::KillSwitch> {
    kills.iter().filter(|kill| !obeys(client) && concerns(kill, client))
}

fn screen(response: &v1::ListClientsResponse, kills: &[v1::KillSwitch]) -> String {
    format!("{}{}", table(response), exceptions(response, kills))
}

fn table(response: &v1::ListClientsResponse) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("SERVICE", Left),
        ("CLUSTER", Left),
        ("INSTANCE", Left),
        ("ADDRESS", Left),
        ("SDK", Left),
        ("SENT", Right),
        ("ACKED", Right),
        ("BEHIND", Right),
        ("REJECTED", Right),
        ("WITHHELD", Right),
        ("SOURCE", Left),
        ("OVERRIDE", Left),
        ("SERVES", Left),
        ("CONNECTED", Right),
        ("LAST MESSAGE", Right),
        ("LACKS", Left),
        ("REPLICA", Left),
    ]);
    let now = now();
    for client in &response.clients {
        let v1::Identity { service, cluster, instance } = client.identity.clone().unwrap_or_default();
        table.row([
            service,
            cluster,
            instance,
            client.address.clone(),
            sdk(client),
            client.sent_revision.to_string(),
            client.acknowledged_revision.to_string(),
            age(client.behind_since.as_ref(), now),
            client.refused_count.to_string(),
            client.withheld_count.to_string(),
            source_name(client.source()).to_owned(),
            mode_name(client.override_mode).to_owned(),
            if client.serves { "yes" } else { "no" }.to_owned(),
            age(client.connected_at.as_ref(), now),
            age(client.last_heard_at.as_ref(), now),
            client.features_lacking.join(","),
            client.replica.clone(),
        ]);
    }
    table
}

/// Returns a line for each rule, guard or kill that a client does not apply, with the reason.
fn exceptions(response: &v1::ListClientsResponse, kills: &[v1::KillSwitch]) -> String {
    let mut lines = String::new();
    for client in &response.clients {
        let v1::Identity { service, cluster, instance } = client.identity.clone().unwrap_or_default();
        let who = printable(&format!("{service} {cluster} {instance}"));
        for v1::Refusal { key, revision, reason, guard, kill } in &client.refused {
            let kind = match (*guard, *kill) {
                (_, true) => "kill ",
                (true, false) => "guard ",
                (false, false) => "",
            };
            let key = printable(&format!("{kind}{}", key::words(key.as_ref())));
            lines.push_str(&format!("{who} rejected {key} of revision {revision}: {}\n", printable(reason)));
        }
        for key in &client.withheld {
            let key = printable(&key::words(Some(key)));
            lines.push_str(&format!("{who} lacks a feature that {key} needs; off there\n"));
        }
        for (count, listed, what) in [
            (client.refused_count, client.refused.len(), "rejected"),
            (client.withheld_count, client.withheld.len(), "need a missing feature"),
        ] {
            let more = (count as usize).saturating_sub(listed);
            if more > 0 {
                lines.push_str(&format!("{who}: {more} more {what}\n"));
            }
        }
        for kill in disobeyed(client, kills) {
            let what = printable(&routes_text(&kill.key.clone().unwrap_or_default()));
            lines.push_str(&format!(
                "{who} ignores the kill switch {what}: its SDK lacks the feature kill_switch; update it\n"
            ));
        }
    }
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Returns the version of the SDK, and whether a proxy has it.
fn sdk(client: &v1::Client) -> String {
    match client.via() {
        v1::Via::Unspecified => client.sdk_version.clone(),
        v1::Via::Proxy => format!("{} via proxy", client.sdk_version),
    }
}

fn source_name(source: v1::Source) -> &'static str {
    match source {
        v1::Source::Unspecified => "",
        v1::Source::BuiltIn => "no rules",
        v1::Source::LastKnownGood => "last known good",
        v1::Source::Live => "live",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_reasons_without_control_characters() {
        let client = v1::Client {
            identity: Some(v1::Identity {
                service: "orders".into(),
                cluster: "default".into(),
                instance: "host-1\x1b[2J".into(),
            }),
            refused: [(false, false), (true, false), (false, true)]
                .map(|(guard, kill)| v1::Refusal {
                    key: None,
                    revision: 7,
                    reason: "policy.mode: 9 is not known".into(),
                    guard,
                    kill,
                })
                .into(),
            ..Default::default()
        };
        let response = v1::ListClientsResponse { clients: vec![client], ..Default::default() };
        let lines = exceptions(&response, &[]);
        assert!(lines.contains("of revision 7: policy.mode: 9 is not known"), "{lines}");
        for kind in [" rejected guard ", " rejected kill "] {
            assert!(lines.lines().any(|line| line.contains(kind)), "{lines}");
        }
        assert!(!lines.contains('\x1b') && !table(&response).to_string().contains('\x1b'));
    }

    #[test]
    fn proxy_is_shown_as_such() {
        let sdk_of = |via: v1::Via| {
            sdk(&v1::Client { sdk_version: "0.1.0".into(), via: via.into(), ..Default::default() })
        };
        assert_eq!([v1::Via::Unspecified, v1::Via::Proxy].map(sdk_of), ["0.1.0", "0.1.0 via proxy"]);
    }

    #[test]
    fn empty_list_has_a_reason_by_filter() {
        assert_eq!(empty_reason(0, false), "no client is connected");
        assert_eq!(empty_reason(0, true), "no matching client is connected");
        assert_eq!(empty_reason(3, true), "all connected clients are up to date");
    }

    #[test]
    fn lagging_clients_are_behind_or_lack_something() {
        let empty_reason = v1::Client::default();
        assert!(!lags(&empty_reason, &[]));
        let any = "*".to_owned();
        let key = v1::Pattern {
            caller_service: any.clone(),
            caller_cluster: any.clone(),
            callee_service: any.clone(),
            callee_method: any,
        };
        let kills = [v1::KillSwitch { key: Some(key), ..Default::default() }];
        let old = v1::Client { identity: Some(v1::Identity::default()), ..Default::default() };
        assert!(lags(&old, &kills), "it does not obey");
        let features = vec!["kill_switch".to_owned()];
        assert!(!lags(&v1::Client { features, ..old }, &kills));
        let behind_since = Some(prost_types::Timestamp::default());
        for client in [
            v1::Client { behind_since, ..Default::default() },
            v1::Client { refused: vec![v1::Refusal::default()], ..Default::default() },
            v1::Client { withheld: vec![v1::Pattern::default()], ..Default::default() },
        ] {
            assert!(lags(&client, &[]), "{client:?}");
        }
    }
}
