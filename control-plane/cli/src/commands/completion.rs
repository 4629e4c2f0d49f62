//! `damper completion SHELL`: the shell's completion script, on stdout.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use crate::error::CliError;
use crate::output;

/// Arguments of `damper completion`.
#[derive(Args, Debug)]
pub(crate) struct CompletionArgs {
    /// Shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "damper", &mut script);
    output::data(&String::from_utf8_lossy(&script))
}
