//! Customers: an open-loop load on the gateway.
//!
//! Requests start on a fixed schedule, independent of earlier responses, as those of real customers do; a
//! closed loop would slow down during the outage. A plain tonic client sends each once, with the timeout
//! [`GIVE_UP_AFTER`], which also limits the number in flight.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use super::ledger::Ledger;
use super::services::TRACE_PARENT;
use super::shop::Order;
use super::shop::gateway_client::GatewayClient;

/// Far longer than any request of the demo on a machine that keeps up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// The customers, on their own thread.
#[derive(Debug)]
pub(super) struct Load {
    stop: watch::Sender<bool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Load {
    /// Starts to send requests; a stretch of the ledger must have begun.
    pub(super) fn start(gateway: SocketAddr, per_second: u32, ledger: Arc<Ledger>) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let thread = thread::Builder::new().name("customers".to_owned()).spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(send(gateway, per_second, ledger, stopped))
        })?;
        Ok(Self { stop, thread })
    }

    /// Stops sending and waits for requests in flight.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        tokio::task::spawn_blocking(|| self.thread.join())
            .await?
            .map_err(|_| anyhow!("the load generator panicked"))?
            .context("the load generator")
    }
}

async fn send(
    gateway: SocketAddr,
    per_second: u32,
    ledger: Arc<Ledger>,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let channel = Endpoint::from_shared(format!("http://{gateway}"))?.connect().await?;
    let client = GatewayClient::new(channel);
    let mut due = interval(Duration::from_secs(1) / per_second);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut in_flight = JoinSet::new();
    loop {
        tokio::select! {
            _ = due.tick() => drop(in_flight.spawn(check_out(client.clone(), Arc::clone(&ledger)))),
            Some(_) = in_flight.join_next() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    in_flight.join_all().await;
    Ok(())
}

async fn check_out(mut client: GatewayClient<Channel>, ledger: Arc<Ledger>) {
    let request_id = ledger.started(Instant::now());
    let mut order = Request::new(Order { request_id });
    order.metadata_mut().insert(TRACE_PARENT, trace());
    let answer = timeout(GIVE_UP_AFTER, client.checkout(order)).await;
    ledger.ended(request_id, matches!(answer, Ok(Ok(_))));
}

/// Starts a trace, as an ingress does.
fn trace() -> MetadataValue<Ascii> {
    let (id, parent) = (fastrand::u128(1..), fastrand::u64(1..));
    let trace = MetadataValue::try_from(format!("00-{id:032x}-{parent:016x}-01"));
    trace.expect("digits and dashes are a header value")
}
