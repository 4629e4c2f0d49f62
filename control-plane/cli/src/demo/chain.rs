//! gateway -> orders -> inventory -> stock: four servers on loopback, each like a process of its own.
//!
//! Every service has its own thread, tokio runtime, identity and connection to the control plane; they share
//! only the measurements of the demo. [`serve`] and [`next`] show the whole adoption: connect, one server
//! layer, one client layer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use damper_core::Ending;
use damper_sdk::{Damper, Options};
use tokio::sync::{oneshot, watch};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use super::fault::Switch;
use super::kept::{Kept, QUEUE};
use super::ledger::{LAYERS, Ledger};
use super::report::Fates;
use super::services::{Gateway, Inventory, Orders, ServiceContext, Stock};
use super::shop::gateway_server::GatewayServer;
use super::shop::inventory_client::InventoryClient;
use super::shop::inventory_server::InventoryServer;
use super::shop::orders_client::OrdersClient;
use super::shop::orders_server::OrdersServer;
use super::shop::stock_client::StockClient;
use super::shop::stock_server::StockServer;

/// Channel to the next service, with Damper's client layer.
pub(super) type Next = damper_sdk::ClientService<Channel>;

/// Hops with retries, from the top of the chain to the bottom.
pub(super) const HOPS: [Hop; LAYERS.len() - 1] = [
    Hop { caller: "gateway", callee: "orders", method: "shop.v1.Orders/Place" },
    Hop { caller: "orders", callee: "inventory", method: "shop.v1.Inventory/Reserve" },
    Hop { caller: "inventory", callee: "stock", method: "shop.v1.Stock/Take" },
];

/// One service calling the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) caller: &'static str,
    pub(super) callee: &'static str,
    pub(super) method: &'static str,
}

/// Longest wait of a service for its first rules.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The running services.
#[derive(Debug)]
pub(super) struct Chain {
    /// From the top of the chain to its bottom.
    services: Vec<Service>,
    stop: watch::Sender<bool>,
}

/// The SDKs of the services that call another one, in the order of [`HOPS`].
#[derive(Clone, Debug)]
pub(super) struct Callers {
    dampers: Vec<Damper>,
}

impl Callers {
    /// Returns how the calls of each hop ended since the start, counted by the SDKs.
    pub(super) fn fates(&self) -> Vec<Fates> {
        self.dampers.iter().map(fates_of).collect()
    }
}

fn fates_of(damper: &Damper) -> Fates {
    let mut fates = Fates::new();
    damper.for_each_route(|_, _, counters| {
        for ending in Ending::all() {
            let count = counters.ended(ending);
            if count > 0 {
                *fates.entry(ending.to_string()).or_default() += count;
            }
        }
    });
    fates
}

/// Handles of every service.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) control_plane: SocketAddr,
    pub(super) ledger: Arc<Ledger>,
    pub(super) fault: Arc<Switch>,
    pub(super) kept: Arc<Kept>,
}

#[derive(Debug)]
struct Service {
    name: &'static str,
    address: SocketAddr,
    damper: Damper,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Chain {
    /// Starts all four services, bottom first, and waits for their rules.
    pub(super) async fn start(surroundings: &Surroundings) -> anyhow::Result<Self> {
        let stop = watch::Sender::new(false);
        let mut services: Vec<Service> = Vec::new();
        for layer in (0..LAYERS.len()).rev() {
            let next = services.last().map(|below| below.address);
            let service = Service::start(layer, next, surroundings.clone(), stop.subscribe()).await?;
            services.push(service);
        }
        services.reverse();
        Ok(Self { services, stop })
    }

    /// Address for requests of customers.
    pub(super) fn gateway(&self) -> SocketAddr {
        self.services[0].address
    }

    /// Returns the SDKs of the services that call another one.
    pub(super) fn callers(&self) -> Callers {
        let callers = self.services.iter().take(HOPS.len());
        Callers { dampers: callers.map(|service| service.damper.clone()).collect() }
    }

    /// Stops every service and waits for its thread.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        for service in self.services {
            let name = service.name;
            tokio::task::spawn_blocking(move || service.thread.join())
                .await?
                .map_err(|_| anyhow!("service {name} panicked"))?
                .with_context(|| format!("service {name}"))?;
        }
        Ok(())
    }
}

impl Service {
    async fn start(
        layer: usize,
        next: Option<SocketAddr>,
        surroundings: Surroundings,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        let name = LAYERS[layer];
        let (started, starting) = oneshot::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(
                layer,
                next,
                surroundings,
                started,
                stop,
            ))
        })?;
        let Ok((address, damper)) = starting.await else {
            let ended = tokio::task::spawn_blocking(|| thread.join()).await?;
            let error = match ended {
                Ok(Err(error)) => error,
                Ok(Ok(())) => anyhow!("it ended immediately"),
                Err(_) => anyhow!("it panicked"),
            };
            return Err(error.context(format!("cannot start service {name}")));
        };
        Ok(Self { name, address, damper, thread })
    }
}

/// Runs one service.
async fn serve(
    layer: usize,
    below: Option<SocketAddr>,
    surroundings: Surroundings,
    started: oneshot::Sender<(SocketAddr, Damper)>,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let control_plane = format!("http://{}", surroundings.control_plane);
    // Damper variables of the terminal are for other services.
    let options = Options::new([control_plane]).service(LAYERS[layer]).environment(|_| None);
    let damper = Damper::connect(options)?;
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())?.with_nodelay(Some(true));
    let address = incoming.local_addr()?;
    let Surroundings { ledger, fault, kept, .. } = surroundings;
    let desk = ServiceContext { ledger, layer };
    let mut server = Server::builder().layer(damper.server_layer());
    let router = match (layer, below) {
        (0, Some(below)) => server.add_service(GatewayServer::new(Gateway {
            desk,
            orders: OrdersClient::new(next(&damper, "orders", below)?),
        })),
        (1, Some(below)) => server.add_service(OrdersServer::new(Orders {
            desk,
            inventory: InventoryClient::new(next(&damper, "inventory", below)?),
        })),
        (2, Some(below)) => {
            damper.worker(QUEUE).forward("stock", channel(below)?).start()?;
            let stock = StockClient::new(next(&damper, "stock", below)?);
            server.add_service(InventoryServer::new(Inventory { desk, kept, stock }))
        }
        _ => server.add_service(StockServer::new(Stock { desk, kept, fault })),
    };
    damper.ready(READY_WITHIN).await?;
    // A demo that timed out stops its services through `stop`.
    let _ = started.send((address, damper.clone()));
    let stopped = async move {
        // An error: the demo ended.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    router.serve_with_incoming_shutdown(incoming, stopped).await?;
    damper.shutdown().await;
    Ok(())
}

fn next(damper: &Damper, service: &str, address: SocketAddr) -> anyhow::Result<Next> {
    Ok(damper.client_layer(service)?.layer(channel(address)?))
}

fn channel(address: SocketAddr) -> anyhow::Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect_lazy())
}
