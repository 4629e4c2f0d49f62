//! Arguments of every command that connects to a server.

use clap::Args;

use super::client;
use crate::output;

/// Connection and output format.
#[derive(Args, Debug)]
#[command(next_help_heading = "Asking a server")]
pub(crate) struct Session {
    #[command(flatten)]
    pub(crate) server: client::ServerArgs,
    /// Output format
    #[arg(short = 'o', long = "output", global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: output::Format,
}
