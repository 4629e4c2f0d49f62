//! `damper routes`: every route that clients report, with its figures and its rule or none.

use clap::Args;

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::figures;
use crate::filter::FilterArgs;
use crate::output::show;

/// Arguments of `damper routes`.
#[derive(Args, Debug)]
pub(crate) struct RoutesArgs {
    #[command(flatten)]
    filter: FilterArgs,
}

/// Shows the routes.
pub(crate) async fn run(session: &Session, args: RoutesArgs) -> Result<(), Error> {
    let client = Client::connect(&session.server).await?;
    let response = client.all_routes(&args.filter.filter()).await?;
    show(session.format, &response, || figures::routes(&response.routes).to_string())
}
