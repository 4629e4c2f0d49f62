//! Faults around `damper proxy` as a process.

mod control_plane;
mod crowd;
mod killed;
mod silent;

use std::net::SocketAddr;
use std::time::Duration;

use damper_tests::foreign::{Process, ProxyAddresses};
use damper_tests::hop::call;
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing listens here.
const NOWHERE: &str = "http://127.0.0.1:1";
const ANY_PORT: &str = "127.0.0.1:0";

/// A proxy with both directions.
struct Proxy {
    process: Process,
    addresses: ProxyAddresses,
    _folder: TempDir,
}

impl Proxy {
    /// Starts one for a service that listens here, as its callee does.
    fn start(control_plane: &str, inbound: &str, service: SocketAddr, callee: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = format!(
            "service: shop\ninbound: {{ listen: '{inbound}', to: '{service}' }}\n\
             outbound: [{{ callee: stock, listen: '{ANY_PORT}', to: '{callee}' }}]\nadmin: {ANY_PORT}\n"
        );
        let (process, addresses) = Process::proxy(control_plane, &config, folder.path());
        Self { process, addresses, _folder: folder }
    }
}

/// Sends one call; fails the test if it does not end.
async fn ended(channel: Channel, message: &str) -> Result<String, Status> {
    let call = timeout(PATIENCE, call(channel, Request::new(message.to_owned()))).await;
    call.expect("the call ends").map(tonic::Response::into_inner)
}
