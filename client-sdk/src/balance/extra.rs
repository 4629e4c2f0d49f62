//! Further connections to an endpoint, opened when requests find no free stream.
//!
//! One at a time: the settings of the next one show how many streams it adds. A further connection closes
//! after a time without use. Requests take the first connection with room, so the later ones become idle.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::connect::{Connector, End, Opened};
use super::connection::{LASTING, LONGEST_WAIT};
use super::endpoint::Endpoint;
use super::set::Shared;
use super::stream::Load;
use crate::background::reconnect_backoff::ReconnectBackoff;

/// Connections to one endpoint, with the first.
pub(super) const MAX_CONNECTIONS: usize = 8;
/// Time without use after which a further connection closes, up to twice as long.
const IDLE: Duration = Duration::from_secs(30);

/// Opens connections, until it is dropped. Those that it has opened are no longer used then.
pub(super) async fn run(connector: &Connector, endpoint: &Arc<Endpoint>, shared: &Shared) {
    let mut waits = ReconnectBackoff::up_to(LONGEST_WAIT);
    let mut extras = JoinSet::new();
    loop {
        endpoint.room().can_grow(extras.len() + 1 < MAX_CONNECTIONS);
        tokio::select! {
            () = endpoint.room().wanted() => {}
            Some(ended) = extras.join_next() => {
                match ended {
                    Ok(true) => waits = ReconnectBackoff::up_to(LONGEST_WAIT),
                    _ => pause(endpoint, &mut waits).await,
                }
                continue;
            }
        }
        if !endpoint.needs_more() || extras.len() + 1 >= MAX_CONNECTIONS {
            // A stream became free, perhaps for one of several: the others ask again.
            endpoint.room().tell();
            continue;
        }
        let (target, address) = (shared.target(), endpoint.place.address);
        match connector.connect(address).await {
            Ok(opened) => {
                let (limit, count) = (opened.limit.now(), extras.len() + 2);
                tracing::debug!(target: "damper", %target, %address, limit, count, "connection added");
                if count == MAX_CONNECTIONS {
                    tracing::warn!(
                        target: "damper", %target, %address, limit,
                        "{count} connections to the endpoint; requests beyond their streams are not sent"
                    );
                }
                let Opened { sender, limit, end } = opened;
                let load = endpoint.connected(sender, limit, false);
                shared.tell();
                extras.spawn(until_idle(Arc::clone(endpoint), load, end));
            }
            Err(problem) => {
                tracing::debug!(target: "damper", %target, %address, "no further connection: {problem}");
                pause(endpoint, &mut waits).await;
            }
        }
    }
}

/// Requests do not wait meanwhile.
async fn pause(endpoint: &Endpoint, waits: &mut ReconnectBackoff) {
    endpoint.room().can_grow(false);
    sleep(waits.next()).await;
}

/// Returns whether the connection lasted: a server may close further connections at once.
async fn until_idle(endpoint: Arc<Endpoint>, load: Arc<Load>, end: End) -> bool {
    let begun = Instant::now();
    let idle = async {
        while load.was_used() {
            sleep(IDLE).await;
        }
    };
    tokio::select! {
        _ = end => {}
        () = idle => {}
    }
    endpoint.disconnected(&load);
    begun.elapsed() >= LASTING
}
