//! `damper clients`: who is connected, and what of the rules has arrived there.

use clap::Args;
use damper_proto::v1;

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::figures::{age, now};
use crate::filter::mode_name;
use crate::key;
use crate::output::{Align, Table, printable, show};

/// Arguments of `damper clients`.
#[derive(Args, Debug)]
pub(crate) struct ClientsArgs {
    /// Only this service
    #[arg(long, value_name = "SERVICE", default_value = "", hide_default_value = true)]
    service: String,
    /// Only this cluster
    #[arg(long, value_name = "CLUSTER", default_value = "", hide_default_value = true)]
    cluster: String,
}

/// Shows the clients and what they refuse.
pub(crate) async fn run(session: &Session, args: ClientsArgs) -> Result<(), Error> {
    let client = Client::connect(&session.server).await?;
    let request = v1::ListClientsRequest { service: args.service, cluster: args.cluster };
    let response = client.answer(client.fleet.clone().list_clients(request)).await?;
    show(session.format, &response, || format!("{}{}", table(&response), exceptions(&response)))
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
        ("APPLIED", Right),
        ("REFUSED", Right),
        ("WITHHELD", Right),
        ("SOURCE", Left),
        ("OVERRIDE", Left),
        ("CONNECTED", Right),
        ("HEARD", Right),
    ]);
    let now = now();
    for client in &response.clients {
        let v1::Identity { service, cluster, instance } = client.identity.clone().unwrap_or_default();
        table.row([
            service,
            cluster,
            instance,
            client.address.clone(),
            client.sdk_version.clone(),
            client.sent_revision.to_string(),
            client.acknowledged_revision.to_string(),
            client.refused.len().to_string(),
            client.withheld.len().to_string(),
            source_name(client.source()).to_owned(),
            mode_name(client.override_mode).to_owned(),
            age(client.connected_at.as_ref(), now),
            age(client.last_heard_at.as_ref(), now),
        ]);
    }
    table
}

/// A line for each rule that a client does not carry out, with the reason.
fn exceptions(response: &v1::ListClientsResponse) -> String {
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
            lines.push_str(&format!("{who} refuses {key} of revision {revision}: {}\n", printable(reason)));
        }
        for key in &client.withheld {
            let key = printable(&key::words(Some(key)));
            lines.push_str(&format!("{who} lacks a feature that {key} needs; it is off there\n"));
        }
    }
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

fn source_name(source: v1::Source) -> &'static str {
    match source {
        v1::Source::Unspecified => "",
        v1::Source::BuiltIn => "built in",
        v1::Source::LastKnownGood => "last known good",
        v1::Source::Live => "live",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_with_their_reason_and_without_control_characters() {
        let client = v1::Client {
            identity: Some(v1::Identity {
                service: "orders".into(),
                cluster: "default".into(),
                instance: "host-1\x1b[2J".into(),
            }),
            refused: [false, true]
                .map(|guard| v1::Refusal {
                    key: None,
                    revision: 7,
                    reason: "policy.mode: 9 is not known".into(),
                    guard,
                    kill: false,
                })
                .into(),
            ..Default::default()
        };
        let response = v1::ListClientsResponse { clients: vec![client], ..Default::default() };
        let lines = exceptions(&response);
        assert!(lines.contains("of revision 7: policy.mode: 9 is not known"), "{lines}");
        assert!(lines.lines().any(|line| line.contains(" refuses guard ")), "{lines}");
        assert!(!lines.contains('\x1b') && !table(&response).to_string().contains('\x1b'));
    }
}
