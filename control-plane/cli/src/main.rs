//! The `damper` command: the server, its administration, the demo.
//!
//! One command, one file in `commands`; what they share is beside this file: the connection (`connection`,
//! `client`), the manifests (`sources`), what is printed (`output`, `figures`,
//! `difference`) and what a failure ends with (`exit`, `status`).
//! Nothing here decides anything about rules: names and policies are checked by the engine, and by the server
//! again.
#![allow(
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are the help text, where brackets mean what can be left out"
)]

mod commands;
mod config;
mod demo;
mod error;
mod input;
mod output;
mod remote;

use std::process::ExitCode;

use clap::Parser as _;

use crate::commands::Cli;
use crate::error::CliError;

/// What a shell script sees of a wrong call: EX_USAGE of sysexits.h.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help, too, may be read by `head`; what can not be printed is nothing to fail about.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done =
        runtime.map_err(CliError::io("the runtime")).and_then(|runtime| runtime.block_on(commands::run(cli)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
