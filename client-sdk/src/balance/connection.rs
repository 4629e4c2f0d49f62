//! Keeps one endpoint connected.
//!
//! Servers end connections to move clients: after a connection that lasted, it reconnects at once. After a
//! failed or short connection the wait grows, so an endpoint that is down sees an attempt every few seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep};

use super::connect::{Connector, Opened};
use super::endpoint::Endpoint;
use super::extra;
use super::set::Shared;
use crate::background::reconnect_backoff::ReconnectBackoff;

pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A shorter connection counts as a failed attempt.
pub(super) const LASTING: Duration = Duration::from_secs(1);

/// Keeps the endpoint connected, by further connections too. Signals `lost` when its address may be wrong.
pub(super) async fn run(
    connector: Connector,
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
    lost: Sender<()>,
) {
    let _disconnected = Disconnects { endpoint: Arc::clone(&endpoint), shared: Arc::clone(&shared) };
    tokio::join!(first(&connector, &endpoint, &shared, lost), extra::run(&connector, &endpoint, &shared));
}

/// Keeps the first connection.
async fn first(connector: &Connector, endpoint: &Endpoint, shared: &Shared, lost: Sender<()>) {
    let mut waits = ReconnectBackoff::up_to(LONGEST_WAIT);
    loop {
        match connector.connect(endpoint.place.address).await {
            Ok(Opened { sender, limit, end }) => {
                let load = endpoint.connected(sender, limit, true);
                shared.tell();
                let begun = Instant::now();
                let ended = end.await;
                endpoint.disconnected(&load);
                if begun.elapsed() >= LASTING {
                    waits = ReconnectBackoff::up_to(LONGEST_WAIT);
                    shared.tell();
                    continue;
                }
                let problem = match ended {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the endpoint closed the connection at once".to_owned(),
                };
                failed(endpoint, shared, &problem);
            }
            Err(problem) => failed(endpoint, shared, &problem),
        }
        // Full: a lookup is pending already.
        _ = lost.try_send(());
        sleep(waits.next()).await;
    }
}

fn failed(endpoint: &Endpoint, shared: &Shared, problem: &str) {
    if endpoint.failed() {
        let (target, address) = (shared.target(), endpoint.place.address);
        tracing::warn!(target: "damper", %target, %address, "endpoint not connected: {problem}");
    }
    shared.tell();
}

/// Disconnects the endpoint when its task ends, so that no request waits for a connection that is no longer
/// kept.
struct Disconnects {
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
}

impl Drop for Disconnects {
    fn drop(&mut self) {
        self.endpoint.leave();
        self.endpoint.failed();
        self.shared.tell();
    }
}
