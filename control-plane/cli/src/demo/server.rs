//! Servers of the demo: its control plane, with a store in a temporary folder, and the fault switch.
//!
//! Both have default addresses, so that other terminals find them. If a default is in use, any free port
//! serves, and the demo reports it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use damper_control_plane::{Server, ServerConfig, StoreUrl};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use tonic::transport::server::TcpIncoming;

use super::fault;
use super::shop::faults_server::FaultsServer;

/// Default address of the control plane, as in the command line.
pub(super) const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7600);
/// Default address of the fault switch.
pub(super) const CONTROL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7601);

/// A server on its own thread.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Returns the requested address, else the default, else any free port of loopback.
pub(super) fn address(asked: Option<SocketAddr>, usual: SocketAddr) -> SocketAddr {
    let taken =
        |address| TcpListener::bind(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    match asked {
        Some(address) => address,
        None if taken(usual) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        None => usual,
    }
}

impl Running {
    /// Starts the control plane with an empty store, which is removed at the end.
    pub(super) async fn control_plane(listen: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("damper-demo-").tempdir()?;
        let (stop, stopped) = watch::channel(false);
        let (started, starting) = oneshot::channel();
        let thread = thread::Builder::new().name("control plane".to_owned()).spawn(move || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("control plane")
                .enable_all()
                .build()?
                .block_on(serve(listen, folder, started, stopped))
        })?;
        match starting.await {
            Ok(address) => Ok(Self { address, stop, thread }),
            Err(_) => Err(joined(thread).await.err().unwrap_or_else(|| anyhow!("it ended immediately")))
                .context("cannot start the control plane"),
        }
    }

    /// Stops the server and waits for it.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        joined(self.thread).await.context("the control plane")
    }
}

async fn joined(thread: JoinHandle<anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(|| thread.join()).await?.map_err(|_| anyhow!("its thread panicked"))?
}

async fn serve(
    listen: SocketAddr,
    folder: TempDir,
    started: oneshot::Sender<SocketAddr>,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let store = StoreUrl::Sled(folder.path().join("store"));
    // The services have ended; a connection of a browser must not hold the port.
    let drain = Duration::from_millis(100);
    let settings = ServerConfig { listen, drain, ..ServerConfig::new(store) };
    let server = Server::bind(settings).await?;
    // A demo that timed out stops its servers through `stop`.
    let _ = started.send(server.local_addr());
    server.run(stopped(stop)).await?;
    Ok(())
}

/// Serves the fault switch until `stopped`.
pub(super) async fn serve_faults(
    incoming: TcpIncoming,
    service: fault::Service,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    tonic::transport::Server::builder()
        .add_service(FaultsServer::new(service))
        .serve_with_incoming_shutdown(incoming, stopped(stop))
        .await
        .context("the fault switch")
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error: the demo ended.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_address_falls_back_but_a_given_one_fails() {
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = other.local_addr().unwrap();
        assert_eq!(address(None, taken).port(), 0);
        assert_eq!(address(Some(taken), LISTEN), taken);
        drop(other);
        assert_eq!(address(None, taken), taken);
    }
}
