//! The arguments of every command that asks a server.

use clap::Args;

use super::client;
use crate::output;

/// What every command that asks a server knows.
#[derive(Args, Debug)]
#[command(next_help_heading = "Asking a server")]
pub(crate) struct Session {
    #[command(flatten)]
    pub(crate) server: client::ServerArgs,
    /// How data is written
    #[arg(short = 'o', long = "output", global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: output::Format,
}
