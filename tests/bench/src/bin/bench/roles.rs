//! What this program does for a row in a process of its own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use damper_bench::calls::{self, Bench, Subject};
use damper_bench::fleet::{self, Holding, raw};
use damper_bench::process;
use damper_bench::queue::{self, Player};
use damper_bench::rows::proxy;
use damper_bench::rows::reconnect::{self, Services};
use damper_bench::rows::unary;

#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Become a command that ends with the process that started this one
    #[command(hide = true)]
    Tethered {
        /// That process
        #[arg(long)]
        to: u32,
        /// The command with its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Make calls through one subject, for valgrind to count
    #[command(hide = true)]
    Calls {
        #[arg(long)]
        url: String,
        #[arg(long, value_enum)]
        subject: Subject,
        #[arg(long)]
        calls: usize,
    },
    /// Serve a unary method
    #[command(hide = true)]
    ServeUnary,
    /// Serve the control plane's streams and nothing else
    #[command(hide = true)]
    ServeStreams {
        /// Where a certificate and its key are; without: no TLS
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Connect clients and do what is said line by line
    #[command(hide = true)]
    HoldFleet(Holding),
    /// Run SDKs and answer what is asked line by line
    #[command(hide = true)]
    HoldServices(Services),
    /// Submit jobs and work on them as each line of input asks
    #[command(hide = true)]
    PlayQueue(Player),
    /// Forward calls and do nothing else
    #[command(hide = true)]
    PassThrough {
        /// The service
        #[arg(long)]
        to: SocketAddr,
    },
    /// Call it, with and without the layer
    #[command(hide = true)]
    CallUnary(unary::Calls),
}

impl Role {
    /// Returns when it is no longer needed.
    pub(crate) fn play(self) -> Result<()> {
        match self {
            Self::Tethered { to, command } => process::become_tethered(to, &command),
            Self::Calls { url, subject, calls } => make_calls(&url, subject, calls),
            Self::ServeStreams { folder } => many_threads(raw::serve(folder.as_deref())),
            Self::HoldFleet(holding) => many_threads(fleet::hold(holding)),
            Self::HoldServices(services) => many_threads(reconnect::hold(services)),
            Self::PlayQueue(player) => many_threads(queue::play(player)),
            Self::PassThrough { to } => many_threads(proxy::pass_through(to)),
            Self::ServeUnary => many_threads(unary::serve()),
            Self::CallUnary(calls) => many_threads(unary::call(calls)),
        }
    }
}

// One thread, so that the background work of the SDK runs only where this one waits.
#[tokio::main(flavor = "current_thread")]
async fn make_calls(url: &str, subject: Subject, count: usize) -> Result<()> {
    Bench::new(&calls::service(url).await?)?.calls(subject, count);
    Ok(())
}

#[tokio::main]
async fn many_threads(role: impl Future<Output = Result<()>>) -> Result<()> {
    process::raise_file_limit()?;
    role.await
}
