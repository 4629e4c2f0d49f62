//! The four services of the shop: ordinary tonic handlers that call the next one, without any code for
//! Damper, except that inventory hands over orders to a queue.
//!
//! A failure of the callee is returned with `?`, as in most code, and the trace is passed on. For the demo
//! they only record each arriving attempt in the ledger.

use std::sync::Arc;

use damper_sdk::{HandOver, handed_over};
use tonic::{Request, Response, Status, async_trait};

use super::chain::Next;
use super::fault::Switch;
use super::kept::{JOB, Kept, QUEUE};
use super::ledger::Ledger;
use super::shop::inventory_client::InventoryClient;
use super::shop::orders_client::OrdersClient;
use super::shop::stock_client::StockClient;
use super::shop::{Order, Receipt, gateway_server, inventory_server, orders_server, stock_server};

/// W3C Trace Context of a request.
pub(super) const TRACE_PARENT: &str = "traceparent";

/// Records the attempts that arrive at a service.
#[derive(Clone, Debug)]
pub(super) struct ServiceContext {
    pub(super) ledger: Arc<Ledger>,
    pub(super) layer: usize,
}

#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) desk: ServiceContext,
    pub(super) orders: OrdersClient<Next>,
}

#[derive(Debug)]
pub(super) struct Orders {
    pub(super) desk: ServiceContext,
    pub(super) inventory: InventoryClient<Next>,
}

#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) desk: ServiceContext,
    pub(super) kept: Arc<Kept>,
    pub(super) stock: StockClient<Next>,
}

#[derive(Debug)]
pub(super) struct Stock {
    pub(super) desk: ServiceContext,
    pub(super) kept: Arc<Kept>,
    pub(super) fault: Arc<Switch>,
}

impl ServiceContext {
    /// Records the request; the next one belongs to the same trace.
    fn arrived(&self, request: Request<Order>) -> Request<Order> {
        let trace = request.metadata().get(TRACE_PARENT).cloned();
        let order = request.into_inner();
        self.ledger.arrived(self.layer, order.request_id);
        let mut next = Request::new(order);
        if let Some(trace) = trace {
            next.metadata_mut().insert(TRACE_PARENT, trace);
        }
        next
    }
}

#[async_trait]
impl gateway_server::Gateway for Gateway {
    async fn checkout(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let order = self.desk.arrived(request);
        let receipt = self.orders.clone().place(order).await?;
        Ok(Response::new(receipt.into_inner()))
    }
}

#[async_trait]
impl orders_server::Orders for Orders {
    async fn place(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let order = self.desk.arrived(request);
        let receipt = self.inventory.clone().reserve(order).await?;
        Ok(Response::new(receipt.into_inner()))
    }
}

#[async_trait]
impl inventory_server::Inventory for Inventory {
    async fn reserve(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let mut order = self.desk.arrived(request);
        if self.kept.hands_over() {
            let key = order.get_ref().request_id.to_string();
            order.extensions_mut().insert(HandOver::to(QUEUE, key));
        }
        match self.stock.clone().take(order).await {
            Err(status) if handed_over(&status).is_some() => self.kept.order(),
            answer => drop(answer?),
        }
        Ok(Response::new(Receipt {}))
    }
}

#[async_trait]
impl stock_server::Stock for Stock {
    async fn take(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        if request.metadata().contains_key(JOB) {
            return self.take_delivery();
        }
        let order = self.desk.arrived(request);
        if self.fault.fails() {
            self.desk.ledger.failed_at_bottom(order.get_ref().request_id);
            return Err(down());
        }
        Ok(Response::new(Receipt {}))
    }
}

impl Stock {
    /// Takes an order that waited in the queue; the ledger has the attempts of the live request only.
    fn take_delivery(&self) -> Result<Response<Receipt>, Status> {
        let is_taken = !self.fault.fails();
        self.kept.delivery(is_taken);
        if is_taken { Ok(Response::new(Receipt {})) } else { Err(down()) }
    }
}

fn down() -> Status {
    Status::unavailable("this call to the service `stock` fails because the demo's fault switch is on")
}
