//! The four services of the shop: ordinary tonic handlers that call the next one, without any code for
//! Damper.
//!
//! A failure of the callee is returned with `?`, as in most code, and the trace is passed on. For the demo
//! they only record each arriving attempt in the ledger.

use std::sync::Arc;

use tonic::{Request, Response, Status, async_trait};

use super::chain::Next;
use super::fault::Switch;
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
    pub(super) stock: StockClient<Next>,
}

#[derive(Debug)]
pub(super) struct Stock {
    pub(super) desk: ServiceContext,
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
        let order = self.desk.arrived(request);
        let receipt = self.stock.clone().take(order).await?;
        Ok(Response::new(receipt.into_inner()))
    }
}

#[async_trait]
impl stock_server::Stock for Stock {
    async fn take(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let order = self.desk.arrived(request);
        if self.fault.fails() {
            self.desk.ledger.failed_at_bottom(order.get_ref().request_id);
            return Err(Status::unavailable("stock is down (the demo's fault switch)"));
        }
        Ok(Response::new(Receipt {}))
    }
}
