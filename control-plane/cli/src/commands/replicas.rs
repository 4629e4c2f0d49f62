//! `damper replicas`: the servers of the control plane as seen by one of them.

use clap::Args;
use damper_proto::v1;

use crate::error::CliError;
use crate::output::figures::{age, now};
use crate::output::{Align, Table, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper replicas`.
#[derive(Args, Debug)]
pub(crate) struct ReplicasArgs {}

/// Prints the replicas, with a warning about unreachable ones.
pub(crate) async fn run(session: &Session, ReplicasArgs {}: ReplicasArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let listed = client.answer(client.fleet.clone().list_replicas(v1::ListReplicasRequest {})).await?;
    show(session.format, &listed, || table(&listed.replicas).to_string())?;
    warn_missing_replicas(&missing(&listed));
    Ok(())
}

fn missing(listed: &v1::ListReplicasResponse) -> Vec<String> {
    listed.replicas.iter().filter(|one| !one.problem.is_empty()).map(|one| one.id.clone()).collect()
}

/// The same for commands whose response has no replicas. Errors are ignored: they concern another request.
pub(crate) async fn warn_where_missing(client: &Client) {
    if let Ok(listed) = client.fleet.clone().list_replicas(v1::ListReplicasRequest {}).await {
        warn_missing_replicas(&missing(listed.get_ref()));
    }
}

fn table(replicas: &[v1::Replica]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("REPLICA", Left),
        ("ADDRESS", Left),
        ("VERSION", Left),
        ("STARTED", Right),
        ("CLIENTS", Right),
        ("REVISION", Right),
        ("CLOCK", Right),
        ("REACHABLE", Left),
        ("UNREACHABLE", Right),
        ("PROBLEM", Left),
    ]);
    let now = now();
    for replica in replicas {
        let reachable = match (replica.self_, replica.problem.is_empty()) {
            (true, _) => "self",
            (false, true) => "yes",
            (false, false) => "no",
        };
        table.row([
            replica.id.clone(),
            replica.address.clone(),
            replica.version.clone(),
            age(replica.started_at.as_ref(), now),
            replica.clients.to_string(),
            replica.revision.to_string(),
            clock(replica.clock_offset.as_ref()),
            reachable.to_owned(),
            age(replica.unheard_since.as_ref(), now),
            replica.problem.clone(),
        ]);
    }
    table
}

/// Clock offset to the server that answers, in seconds.
fn clock(offset: Option<&prost_types::Duration>) -> String {
    let seconds = |offset: &prost_types::Duration| offset.seconds as f64 + f64::from(offset.nanos) / 1e9;
    offset.map_or_else(String::new, |offset| format!("{:+.1}s", seconds(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_replica_has_a_reason() {
        let one = v1::Replica { id: "a-1".to_owned(), self_: true, clients: 3, ..v1::Replica::default() };
        let problem = "connection refused\x1b".to_owned();
        let other = v1::Replica { id: "b-2".to_owned(), problem, ..v1::Replica::default() };
        let listed = v1::ListReplicasResponse { replicas: vec![one, other] };
        assert_eq!(missing(&listed), ["b-2"]);
        let text = table(&listed.replicas).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("self") && lines[1].contains('3'), "{text}");
        assert!(lines[2].contains("no") && lines[2].ends_with("connection refused\\u{1b}"), "{text}");
    }
}
