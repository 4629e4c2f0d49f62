//! The `damper` command: the server, its administration, the demo; and `damper-proxy`, its proxy alone.
//!
//! Each command is a file in `commands`. They share `remote` (connection, calls), `input` (arguments,
//! manifests), `output` and `error`. Names and policies are checked by the engine, and again by the server.
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

use clap::Parser;

use crate::commands::{Cli, proxy};
use crate::error::CliError;

/// Exit status of a usage error: EX_USAGE of sysexits.h.
const USAGE: u8 = 64;

/// Runs `damper`.
pub fn damper() -> ExitCode {
    start(Cli::worker_threads, commands::run)
}

/// Runs `damper-proxy`: the commands of `damper proxy`.
pub fn damper_proxy() -> ExitCode {
    start(|_| proxy::worker_threads(), proxy::run_alone)
}

fn start<C: Parser, F: Future<Output = Result<(), CliError>>>(
    worker_threads: impl FnOnce(&C) -> Option<usize>,
    run: impl FnOnce(C) -> F,
) -> ExitCode {
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // `head` may read the help: a failed write is not an error.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = worker_threads(&cli) {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.enable_all().build();
    let done = runtime.map_err(CliError::io("the runtime")).and_then(|runtime| runtime.block_on(run(cli)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
