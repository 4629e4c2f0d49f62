//! `damper routes`: reported routes with statistics, rule, and retries by others.

use clap::Args;
use damper_proto::v1;

use crate::commands::kills;
use crate::error::{CliError, print_message};
use crate::input::filter::{FilterArgs, WindowArgs};
use crate::output::figures;
use crate::output::{Format, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper routes`.
#[derive(Args, Debug)]
pub(crate) struct RoutesArgs {
    /// List only routes to which no rule applies
    #[arg(long)]
    without_rule: bool,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Prints the routes.
pub(crate) async fn run(session: &Session, args: RoutesArgs) -> Result<(), CliError> {
    let asked = v1::ListRoutesRequest {
        filter: Some(args.filter.filter()),
        without_rule: args.without_rule,
        window: args.window.wire()?,
        ..Default::default()
    };
    let client = Client::connect(&session.server).await?;
    let response = client.all_routes(&asked).await?;
    if session.format == Format::Table {
        kills::warn_kills_in_force(&client).await;
    }
    warn_missing_replicas(&response.missing_replicas);
    if response.routes.is_empty() {
        print_message("no route: no connected service has reported a call that passes the filter");
    }
    show(session.format, &response, || figures::routes(&response.routes).to_string())
}
