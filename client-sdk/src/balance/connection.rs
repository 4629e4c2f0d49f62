//! Keeps one endpoint connected.
//!
//! After a connection that lasted the next one is made at once, as servers end connections to move their clients.
//! After one that did not, or that was not made, the wait grows, so that an endpoint that is away is asked every few
//! seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep};

use super::connect::Connector;
use super::endpoint::Endpoint;
use super::set::Shared;
use crate::waits::ReconnectBackoff;

const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A connection that took requests for so long is no sign of an endpoint that ends all of them.
const LASTING: Duration = Duration::from_secs(1);

/// Connects again and again, and says by `lost` when the endpoint's address may be wrong.
pub(super) async fn run(
    connector: Connector,
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
    lost: Sender<()>,
) {
    let _disconnected = Disconnects { endpoint: Arc::clone(&endpoint), shared: Arc::clone(&shared) };
    let mut waits = ReconnectBackoff::up_to(LONGEST_WAIT);
    loop {
        match connector.connect(endpoint.place.address).await {
            Ok((sender, end)) => {
                endpoint.connected(sender);
                shared.tell();
                let begun = Instant::now();
                let ended = end.await;
                endpoint.disconnected();
                if begun.elapsed() >= LASTING {
                    waits = ReconnectBackoff::up_to(LONGEST_WAIT);
                    shared.tell();
                    continue;
                }
                let problem = match ended {
                    Ok(Err(error)) => error.to_string(),
                    _ => "it ended the connection at once".to_owned(),
                };
                failed(&endpoint, &shared, &problem);
            }
            Err(problem) => failed(&endpoint, &shared, &problem),
        }
        // Full: it is being looked at anyway.
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

/// Whoever ends the task ends the connection: no request may wait at an endpoint that nobody keeps.
struct Disconnects {
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
}

impl Drop for Disconnects {
    fn drop(&mut self) {
        self.endpoint.disconnected();
        self.endpoint.failed();
        self.shared.tell();
    }
}
