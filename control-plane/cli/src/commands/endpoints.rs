//! `damper endpoints [CALLEE]`: endpoints of callees over all clients with balanced channels.

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::output::{Align, Table, printable, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper endpoints`.
#[derive(Args, Debug)]
pub(crate) struct EndpointsArgs {
    /// Only endpoints of this callee
    #[arg(value_name = "CALLEE", default_value = "", hide_default_value = true)]
    callee: String,
}

/// Prints the endpoints of each callee, failing ones first.
pub(crate) async fn run(session: &Session, args: EndpointsArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let response = client.all_endpoints(&args.callee).await?;
    warn_missing_replicas(&response.missing_replicas);
    if response.callees.is_empty() {
        print_message("no endpoint: no connected client reports a balanced channel to a matching callee");
    }
    show(session.format, &response, || screen(&response))
}

/// Adds problems below the table.
fn screen(response: &v1::ListEndpointsResponse) -> String {
    let problems = response.callees.iter().filter(|callee| !callee.problem.is_empty());
    let lines: String = problems.map(|callee| format!("{}\n", printable(&callee.problem))).collect();
    let gap = if lines.is_empty() { "" } else { "\n" };
    format!("{}{gap}{lines}", table(response))
}

fn table(response: &v1::ListEndpointsResponse) -> Table {
    let mut table = Table::new(&[
        ("CALLEE", Align::Left),
        ("ENDPOINT", Align::Left),
        ("ZONE", Align::Left),
        ("FAILED", Align::Left),
        ("IN FLIGHT", Align::Right),
        ("EJECTED", Align::Left),
        ("NOT CONNECTED", Align::Left),
    ]);
    for callee in &response.callees {
        for endpoint in &callee.endpoints {
            let of_clients = |count: u32| format!("{count} of {}", endpoint.clients);
            table.row([
                callee.callee_service.clone(),
                endpoint.address.clone(),
                endpoint.zone.clone(),
                format!("{} of {}", endpoint.recent_failures, endpoint.recent),
                endpoint.in_flight.to_string(),
                of_clients(endpoint.ejected),
                of_clients(endpoint.not_connected),
            ]);
        }
    }
    table
}
