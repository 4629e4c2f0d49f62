//! Keeps one endpoint connected, with further connections while the streams of one are too few.
//!
//! Servers end connections to move clients: after a connection that lasted, it reconnects at once. After a
//! failed or short connection the wait grows, so an endpoint that is down sees an attempt every few seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::connect::{Connector, End, Opened};
use super::endpoint::Endpoint;
use super::set::Shared;
use crate::background::reconnect_backoff::ReconnectBackoff;

const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A shorter connection counts as a failed attempt.
const LASTING: Duration = Duration::from_secs(1);
/// Time after a further connection failed until the next.
const PAUSE: Duration = Duration::from_secs(1);

/// Reconnects in a loop. Signals `lost` when the endpoint's address may be wrong.
pub(super) async fn run(
    connector: Connector,
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
    lost: Sender<()>,
) {
    let _disconnected = Disconnects { endpoint: Arc::clone(&endpoint), shared: Arc::clone(&shared) };
    let mut waits = ReconnectBackoff::up_to(LONGEST_WAIT);
    let mut further = JoinSet::new();
    loop {
        match connector.connect(endpoint.place.address).await {
            Ok(Opened { sender, limit, end }) => {
                let connection = endpoint.connected(sender, limit);
                shared.tell();
                let begun = Instant::now();
                let ended = grow(&connector, &endpoint, &shared, &mut further, end).await;
                endpoint.disconnected(&connection);
                if begun.elapsed() >= LASTING {
                    waits = ReconnectBackoff::up_to(LONGEST_WAIT);
                    shared.tell();
                    continue;
                }
                let problem = match ended {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the endpoint closed the connection at once".to_owned(),
                };
                failed(&endpoint, &shared, &problem);
            }
            Err(problem) => failed(&endpoint, &shared, &problem),
        }
        // Full: a lookup is pending already.
        _ = lost.try_send(());
        sleep(waits.next()).await;
    }
}

/// Opens a further connection whenever one is wanted, until the first has ended.
async fn grow(
    connector: &Connector,
    endpoint: &Arc<Endpoint>,
    shared: &Arc<Shared>,
    further: &mut JoinSet<()>,
    mut end: End,
) -> Result<hyper::Result<()>, RecvError> {
    loop {
        tokio::select! {
            ended = &mut end => return ended,
            () = endpoint.wants_more() => {
                further.spawn(run_further(connector.clone(), Arc::clone(endpoint), Arc::clone(shared)));
            }
            Some(_) = further.join_next() => {}
        }
    }
}

async fn run_further(connector: Connector, endpoint: Arc<Endpoint>, shared: Arc<Shared>) {
    match connector.connect(endpoint.place.address).await {
        Ok(Opened { sender, limit, end }) => {
            let connection = endpoint.connected(sender, limit);
            endpoint.growth_ended();
            shared.tell();
            _ = end.await;
            endpoint.disconnected(&connection);
            shared.tell();
        }
        Err(problem) => {
            let address = endpoint.place.address;
            tracing::warn!(target: "damper", %address, "no further connection: {problem}");
            endpoint.growth_paused();
            shared.tell();
            sleep(PAUSE).await;
            endpoint.growth_ended();
        }
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
        self.endpoint.disconnect();
        self.endpoint.failed();
        self.shared.tell();
    }
}
